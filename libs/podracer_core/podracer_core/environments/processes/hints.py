"""What to do about common errors of a user's environment in its own process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from podracer_core.catalogue.environments.packages import install_advice


def hint(error: BaseException) -> str:
    """A sentence for a file that is not here, or a missing module; empty for other errors."""
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
