"""The `podracer` command: a module a subject; what is heavy is imported when a command runs.

application      the commands put together, and the exit code of each error
plugins          commands of installed packages
options          what several commands share
"""

from __future__ import annotations

import sys
from contextlib import redirect_stderr, redirect_stdout


def main() -> None:
    """Run the command line; ends the process with its exit code.

    0 done: the target was reached, or there was none; 1 failed; 2 bad usage or bad input; 3 the
    budget is used and the target was missed; 130 interrupted."""
    try:
        from podracer_client.command.application import application, exit_code, failure_text
        from podracer_core.errors import PodracerError
        from podracer_platform.telemetry.logging import PrintableStream

        with (
            redirect_stdout(PrintableStream(sys.stdout)),
            redirect_stderr(PrintableStream(sys.stderr)),
        ):
            try:
                application(prog_name="podracer")
            except PodracerError as error:
                sys.stderr.write(failure_text(error))
                sys.exit(exit_code(error))
    except KeyboardInterrupt:  # also while the imports above are under way
        sys.exit(130)
