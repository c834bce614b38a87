"""The `podracer` command: a module a subject; what is heavy is imported when a command runs.

command_line     the entry point; imports the rest when it runs
commands      the commands put together, and the exit code of each error
plugins          commands of installed packages
options          what several commands share
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.command import algorithms, environments, init, run, zoo
    from podracer_client.command.command_line import main
    from podracer_client.command.commands import application, exit_code, failure_text
    from podracer_client.command.jobs import pod_count_text
    from podracer_client.command.options import (
        EnsembleRule, EnsembleSize, FiguresFolder, Json, Policies, ServerOptions, Settings, Trusted,
        choose_display, with_server,
    )
    from podracer_client.command.plugins import GROUP, HERE, POLICIES, PlacedCommand
    from podracer_client.command.pool import capacity_text
    from podracer_client.command.zoo import TITLES, row
else:
    __all__, __getattr__ = exports(__name__)
