"""Signed tokens, `pdr1.CLAIMS.SIGNATURE`: whose it is, for what and until when. `podracer token
create` makes them.

CLAIMS is a JSON object and SIGNATURE the Ed25519 signature of all that stands before it, both in
base64url. A server has only public keys and the ids that it refuses, in `public_keys` and `revoked`
of its folder of tokens, one a line."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from podracer_core.errors import Unauthenticated
from podracer_platform.rpc.tokens import WatchedFile

PREFIX = "pdr1."
PUBLIC_KEYS, REVOKED = "public_keys", "revoked"
CLOCK_TOLERANCE_S = 60
"""How far the clocks of issuer and server may be apart."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says. `audience`: the kinds of servers that accept it, such as `orchestrator`;
    empty, as for `projects`: all. `expires`: seconds since the epoch."""

    id: str
    name: str
    role: str
    expires: int
    projects: Sequence[str]
    audience: Sequence[str]


class SignedTokens:
    """Checks tokens by the files in `directory`. Without public keys there it accepts none."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self._keys = WatchedFile(directory / PUBLIC_KEYS, lambda line, _: decoded(line.strip()))
        self._revoked = WatchedFile(directory / REVOKED, lambda line, _: line.strip())
        self._now = now

    def keys(self) -> tuple[bytes, ...]:
        """The public keys that count here."""
        return self._keys.current()

    def verify(self, token: str, audience: Container[str]) -> Claims:
        """The claims of a token for a server that is `audience`. Raises Unauthenticated with the
        reason, Unavailable if a file cannot be read."""
        claims = next(filter(None, (verified(key, token) for key in self.keys())), None)
        if claims is None:
            raise Unauthenticated(
                "this server knows no key that has signed this token", reason="UNKNOWN_TOKEN"
            )
        if claims.expires + CLOCK_TOLERANCE_S <= self._now():
            raise Unauthenticated(
                f"the token {claims.name} ({claims.id}) has expired", reason="TOKEN_EXPIRED"
            )
        if claims.id in self._revoked.current():
            raise Unauthenticated(
                f"the token {claims.name} ({claims.id}) was revoked", reason="TOKEN_REVOKED"
            )
        if claims.audience and not any(each in audience for each in claims.audience):
            expected = " and ".join(claims.audience)
            raise Unauthenticated(
                f"the token {claims.name} is for {expected} only", reason="WRONG_AUDIENCE"
            )
        return claims


def sign(seed: bytes, claims: Claims) -> tuple[str, str]:
    """The token with these claims, and the public key that verifies it; `seed` is the private key,
    32 random bytes."""
    # late: most processes sign nothing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    signed = PREFIX + _encode(json.dumps(asdict(claims)).encode())
    return f"{signed}.{_encode(key.sign(signed.encode()))}", _encode(
        key.public_key().public_bytes_raw()
    )


@lru_cache(maxsize=1024)
def verified(key: bytes, token: str) -> Claims | None:
    """The claims, if `key` has signed them."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed, _, signature = token.rpartition(".")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(decoded(signature), signed.encode())
        return Claims(**json.loads(decoded(signed.removeprefix(PREFIX))))
    except (InvalidSignature, ValueError, TypeError):
        return None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
