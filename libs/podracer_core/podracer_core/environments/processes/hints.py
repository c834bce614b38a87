"""What to do about common errors of a user's environment in its own process."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from podracer_core.catalogue.environments.packages import install_advice
from podracer_core.environments.processes.launcher import IN_BOX


def hint(error: BaseException) -> str:
    """A sentence for a file that is not here, or a missing module; empty for other errors."""
    if IN_BOX in os.environ and (advice := _box_advice(error)):
        return advice
    if isinstance(error, FileNotFoundError):
        named = re.match(r"(\S+) not found", str(error))  # as NumPy says it
        file = Path(str(error.filename or (named[1] if named else "/")))
        if not file.is_absolute():
            beside = f'Path(__file__).parent / "{file.name}"'
            ways = f"put the file beside your module and open {beside}, or name it under `data`"
            return f"a relative path is right in one folder only: {ways}"
        if str(file.parent) in sys.path:
            return "only what `environment.code` names is sent here: name the folder that holds this file"
    if isinstance(error, ModuleNotFoundError):
        top = (error.name or getattr(error.__cause__, "name", None) or "it").partition(".")[0]
        return install_advice(top) or f"install {top}, or name the folder that holds it under `environment.code`"
    return ""


def _box_advice(error: BaseException) -> str:
    """A sentence for what the box refuses, also where a library has raised another error because of that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) or (isinstance(cause, PermissionError) and cause.filename is None):
            why = "an environment has no network, unless its job says `environment: {network: true}`, and no /dev/shm"
            return f"{why}, which locks of multiprocessing need"
        if isinstance(cause, PermissionError):
            return "it reads its own code and `data` only, and writes into its working folder (tempfile.gettempdir())"
        cause = cause.__cause__ or cause.__context__
    return ""
