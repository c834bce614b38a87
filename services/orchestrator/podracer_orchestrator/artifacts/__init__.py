"""Downloadable files, and the deletion of unneeded ones.

artifacts   checkpoints by name, uploaded files
uploads     those in progress: their room and their time
versions    earlier contents of names
retention   the task that deletes
"""
