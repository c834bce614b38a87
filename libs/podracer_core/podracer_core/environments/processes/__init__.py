"""Users' environments in a few child processes, over shared memory.

preprocess, row_processes            the batch, and its processes
preprocess_child, rows               the code that runs in a child
gymnasium_rows, batched_rows         the two kinds of user environments
exchange, child_process, row_codec   the communication between both sides
box, launcher                        what a child may do, and how it is held to that
child_output                         what user code prints: its end is kept, a part is logged
batched_inspection                   checks that a batched environment follows its interface
"""
