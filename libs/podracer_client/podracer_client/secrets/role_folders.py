"""Who is given which secrets: a folder for each role, to be mounted where its processes run.

DIR/roles/<role>/tokens/…  what PODRACER_TOKENS is to be
DIR/roles/<role>/tls/…     what PODRACER_TLS is to be
DIR/roles/<role>/store/…   files for PODRACER_S3_ACCESS_KEY_FILE and PODRACER_S3_SECRET_KEY_FILE
DIR/roles/<role>/database/… a file for PGPASSFILE
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from podracer_client.files import write_private
from podracer_core.rpc.tls import CA, CERTIFICATE, KEY
from podracer_core.rpc.tokens import hash_tokens

__all__ = ["ROLES", "fill_role_folders", "given"]

ROLES = ("orchestrator", "leaderboard", "learner", "worker", "evaluator", "policy", "client")
"""Those that have a certificate."""

_STORE = ("store/access_key", "store/secret_key")
_GIVEN = {
    "orchestrator": ("tokens/client", "tokens/pod", "tokens/control", *_STORE, "database/pgpass"),
    "leaderboard": ("tokens/client", "tokens/control", "database/pgpass"),
    "learner": ("tokens/pod", *_STORE),
    "worker": ("tokens/pod",),
    "evaluator": ("tokens/pod",),
    "policy": ("tokens/client", "tokens/control"),
    "client": ("tokens/client",),
    "store": _STORE,
    "database": ("database/password",),
}
"""Besides the certificate. `store` and `database` are the servers themselves."""
_KNOWN = {
    "orchestrator": ("tokens/pod",),
    "leaderboard": ("tokens/client", "tokens/control"),
    "worker": ("tokens/pod",),
    "evaluator": ("tokens/pod",),
    "policy": ("tokens/control",),
}
"""Tokens that a role is shown and never shows: it is given their digests, which admit nobody."""


def fill_role_folders(folder: Path) -> list[Path]:
    """Bring the copies below `folder`/roles up to date; returns those that were written."""
    written = []
    for role, paths in _GIVEN.items():
        contents = given(role, {path: (folder / path).read_bytes() for path in paths})
        if role in ROLES:
            contents |= {f"tls/{name}": (folder / "tls" / role / name).read_bytes() for name in (CA, KEY, CERTIFICATE)}
        for path, content in contents.items():
            copy = folder / "roles" / role / path
            if not copy.exists() or copy.read_bytes() != content:
                write_private(copy, content)
                written.append(copy)
    return written


def given(role: str, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a role is given of these, by path; its certificate is not among them."""
    known, paths = _KNOWN.get(role, ()), [path for path in _GIVEN[role] if path in contents]
    return {path: hash_tokens(contents[path].decode()).encode() if path in known else contents[path] for path in paths}
