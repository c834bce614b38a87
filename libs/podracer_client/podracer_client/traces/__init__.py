"""The time a job spent, by operation.

reading      its spans, from the files that the processes have written
flame, page  spans as a tree, and as an HTML page with a timeline
"""
