"""Whether the code of a policy's environment, which comes from a server, may run on this
machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from podracer_client.servers import DEFAULT_FOLDER
from podracer_core.catalogue import StoredFile
from podracer_core.errors import InvalidInput

_FILE = "trusted_code"


@dataclass(frozen=True, slots=True)
class Trust:
    """`folder`: the state folder, which remembers the digests that are trusted; `given`: by
    `--trust`."""

    folder: Path | None = None
    given: bool = False

    def require(self, code: StoredFile) -> None:
        """Ask, once for each digest. Raises InvalidInput (UNTRUSTED_ENVIRONMENT) without an
        answer."""
        known = (self.folder or DEFAULT_FOLDER) / _FILE
        if known.exists() and code.sha256 in known.read_text().split():
            return
        name = "/".join(code.key.split("/")[:4])
        text = f"the policy's environment is code of the server: {name}, SHA-256 {code.sha256[:16]}"
        is_asked = not self.given and sys.stdin.isatty() and sys.stderr.isatty()
        if not self.given and not (
            is_asked and typer.confirm(f"{text}. Run it in a box?", err=True)
        ):
            message = f"{text}; if you trust it, say so once with --trust"
            raise InvalidInput(message, reason="UNTRUSTED_ENVIRONMENT")
        known.parent.mkdir(parents=True, exist_ok=True)
        with known.open("a") as file:
            file.write(f"{code.sha256}\n")
