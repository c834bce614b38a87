"""Processes of this machine that a command looks after.

process                 one process, started again when it dies
interrupts              Ctrl-C: once to stop well, twice to stop now
run_folder, ports       where they listen: unix sockets, ports
"""
