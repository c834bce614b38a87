"""Signed tokens that were issued from a folder of `podracer secrets` or `podracer up`.

DIR/signing/{key,issued}           the private key, and the claims of each token; no server needs
                                   them
DIR/tokens/{public_keys,revoked}   what a server needs
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from podracer_client.files import write_private
from podracer_client.secrets.deployment import ROLES, fill_role_folders
from podracer_core.errors import InvalidInput, NotFound
from podracer_core.rpc.resource_names import check_label, parse
from podracer_core.rpc.signed_tokens import PUBLIC_KEYS, REVOKED, Claims, sign
from podracer_core.rpc.tokens import FILE_ROLES, FileToken, Role, create_secret_file


def create(
    folder: Path, name: str, role: str, projects: Sequence[str], audience: Sequence[str], days: int
) -> str:
    """A new token; empty `projects` and `audience` mean all. Raises NotFound for a folder without
    tokens, InvalidInput for a folder that cannot be written, and for what cannot be in a token."""
    if not (folder / "tokens").is_dir():
        raise NotFound(
            f"no tokens in {folder}: expected a folder of `podracer secrets` or `podracer up`",
            folder=folder,
        )
    check_label(name, "name")
    for field, value, known in (
        ("role", [role], (*FILE_ROLES, Role.VIEWER)),
        ("audience", audience, ROLES[:-1]),
    ):
        if wrong := set(value) - set(known):
            raise InvalidInput.of(field, f"expected one of {', '.join(known)}, got {min(wrong)!r}")
    ids = [parse("project", each, "project").project for each in projects]
    claims = Claims(
        secrets.token_hex(4), name, role, int(time.time()) + days * 86_400, ids, audience
    )
    create_secret_file(folder / "signing" / "key")
    seed = base64.urlsafe_b64decode(FileToken(folder / "signing" / "key")() + "=")
    token, public_key = sign(seed, claims)
    _add(folder, f"tokens/{PUBLIC_KEYS}", public_key)
    _add(folder, "signing/issued", json.dumps(asdict(claims)))
    return token


def issued(folder: Path) -> list[tuple[Claims, str]]:
    """Every token, the oldest first, and whether it is valid, expired or revoked."""
    revoked, now = _lines(folder / "tokens" / REVOKED), time.time()
    found = [Claims(**json.loads(line)) for line in _lines(folder / "signing" / "issued")]
    return [
        (it, "revoked" if it.id in revoked else "valid" if it.expires > now else "expired")
        for it in found
    ]


def revoke(folder: Path, which: str) -> list[str]:
    """Revoke the token of an id, or all of a name; returns their ids. Raises NotFound if there is
    none."""
    found = [claims.id for claims, _ in issued(folder) if which in (claims.id, claims.name)]
    if not found:
        raise NotFound(
            f"no token {which!r} was issued from {folder}", reason="NO_TOKEN", folder=folder
        )
    for each in found:
        _add(folder, f"tokens/{REVOKED}", each)
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _add(folder: Path, path: str, line: str) -> None:
    """Add a line to a file that does not have it yet, and bring the copies for the roles up to
    date."""
    lines = _lines(folder / path)
    try:
        write_private(
            folder / path, "".join(f"{each}\n" for each in dict.fromkeys([*lines, line])).encode()
        )
        if (folder / "roles").is_dir():
            fill_role_folders(folder)
    except OSError as error:
        raise InvalidInput(f"cannot write below {folder}: {error.strerror}", path=folder) from error
