"""Processes of this machine that a command manages.

process                 one process, started again when it dies; Ctrl-C meanwhile
run_folder, ports       unix sockets and ports for them
"""
