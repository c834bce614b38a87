"""`python -m podracer_client` is the `podracer` command."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from podracer_client.command import main


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
