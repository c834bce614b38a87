"""Processes of this machine that a command looks after: one process, its ports, its run folder, and Ctrl-C."""
