"""Processes of this machine that a command manages.

process                 one process, started again when it dies
interrupts              Ctrl-C: once to stop well, twice to stop now
run_folder, ports       unix sockets and ports for them
"""
