"""Downloadable files, and the deletion of unneeded ones.

artifacts   checkpoints by name, uploaded files
versions    earlier contents of names
retention   the task that deletes
"""
