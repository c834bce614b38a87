"""Processes of this machine that a command manages.

process                 one process, started again when it dies; Ctrl-C meanwhile
run_folder, ports       unix sockets and ports for them
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.processes import run_folder
    from podracer_client.processes.ports import (
        FixedAddress, describe_process, free_ports, listener_of,
    )
    from podracer_client.processes.process import (
        INTERRUPTED, Inbox, Interrupts, ManagedProcess, ProcessNews, ProcessPlan,
        serve_until_interrupted,
    )
    from podracer_client.processes.run_folder import RunFolder
else:
    __all__, __getattr__ = exports(__name__)
