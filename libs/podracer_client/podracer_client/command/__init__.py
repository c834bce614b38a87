"""The `podracer` command: a module a subject; what is heavy is imported when a command runs.

commands    the commands put together, also those of installed packages; the exit code of each error
options     what several commands share

The entry point is podracer_client.__main__.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.command import catalogue, job_files, run
    from podracer_client.command.commands import (
        GROUP, HERE, POLICIES, PlacedCommand, application, exit_code, failure_text,
    )
    from podracer_client.command.job_files import TITLES, row
    from podracer_client.command.jobs import pod_count_text
    from podracer_client.command.options import (
        EnsembleRule, EnsembleSize, FiguresFolder, Json, Policies, ServerOptions, Settings, Trusted,
        choose_display, with_server,
    )
    from podracer_client.command.server import capacity_text
else:
    __all__, __getattr__ = exports(__name__)
