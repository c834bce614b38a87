"""Environments of others in a few child processes, over shared memory.

preprocess, row_processes            the batch, and its processes
preprocess_child, rows               what runs in a child
gymnasium_rows, batched_rows         the two kinds of user environments
exchange, child_process, row_codec   how both sides talk
batched_inspection                   whether a batched environment keeps its promises
"""
