"""What can be downloaded, and what is deleted when nothing needs it.

artifacts   checkpoints by name, uploaded files
versions    earlier contents of names
retention   the task that deletes
"""
