"""The `podracer` command, also `python -m podracer_client`; it imports the rest when it runs."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import NoReturn


def main() -> None:
    """Run the command line; ends the process with its exit code.

    0 done: the target was reached, or there was none; 1 failed; 2 bad usage or bad input; 3 the
    budget is used and the target was missed; 130 interrupted."""
    try:
        from podracer_client.command import application, exit_code, failure_text
        from podracer_core.errors import PodracerError
        from podracer_platform.telemetry import PrintableStream

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


def run() -> NoReturn:
    """The command, and the end of this process: at once, for Python takes 0.1 s to take its modules
    apart."""
    code: int | str | None = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    with suppress(BrokenPipeError):  # whatever read the output has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    run()
