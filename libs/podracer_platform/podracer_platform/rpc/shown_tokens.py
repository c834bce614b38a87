"""Tokens that a learner shows to its workers and evaluators, where user code runs: each is for one
lease and one address, and ends within a minute.

The learner signs them with a key that it derives from its pod token. A worker or an evaluator has
the public key only, so what it is shown opens no other one, no other pod's, and no orchestrator.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from podracer_platform.rpc.address import parse_address
from podracer_platform.rpc.signed_tokens import Claims, SignedTokens, decoded, sign, verified
from podracer_platform.rpc.tokens import HASHED, TokenSource, WatchedFile

POD_KEYS = "pod_keys"
"""The file of public keys for those who have only digests of pod tokens."""
_HALF_LIFE_S = 30


class ShownTokens:
    """The learner's end. `lease`: the name of the lease at present."""

    def __init__(self, token: TokenSource, now: Callable[[], float] = time.time) -> None:
        """`token`: the pod's."""
        self._token, self._now = token, now
        self.lease = ""

    def at(self, kind: str, address: str) -> TokenSource:
        """What is shown to the worker or evaluator (`kind`) at `address`."""
        place = f"{kind} {_place(address)}"
        return lambda: _shown(
            self._token(), self.lease, place, int(self._now()) // _HALF_LIFE_S + 2
        )


class TokensShownHere(SignedTokens):
    """The other end: also accepts what learners show, by the keys of their pod tokens in
    `directory`."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        super().__init__(directory, now)
        self._more = (
            WatchedFile(directory / POD_KEYS, lambda line, _: decoded(line.strip())),
            WatchedFile(directory / "pod", lambda line, _: decoded(public_key(line.split()[0]))),
        )
        verified(b"", "")  # imports what verifies, for which a first session would wait

    def keys(self) -> tuple[bytes, ...]:
        return (*super().keys(), *(key for file in self._more for key in file.current() if key))


class Places:
    """The audiences of a token that a worker or an evaluator (`kind`) at `address` accepts."""

    def __init__(self, kind: str, address: str) -> None:
        self._kind, self._place = kind, _place(address)

    def __contains__(self, audience: object) -> bool:
        kind, _, place = str(audience).partition(" ")
        return kind == self._kind and (place in ("", self._place) or self._is_here(place))

    def _is_here(self, place: str) -> bool:
        host, _, port = place.rpartition(":")
        return (
            not place.startswith("unix:")
            and port == self._place.rpartition(":")[2]
            and _is_of_this_machine(host)
        )


def public_key(pod_token: str) -> str:
    """The key that verifies what holders of a pod token show; empty for a digest, which no secret
    key comes from."""
    return (
        ""
        if pod_token.startswith(HASHED)
        else sign(_seed(pod_token), Claims("", "", "", 0, (), ()))[1]
    )


def _place(text: str) -> str:
    """An address as both sides see it: containers mount the folder of a socket at different
    paths."""
    address = parse_address(text)
    return (
        f"unix:{Path(address.path).name}" if address.is_unix else f"{address.host}:{address.port}"
    )


def _seed(pod_token: str) -> bytes:
    return hashlib.sha256(b"podracer-shown-v1\0" + pod_token.encode()).digest()


@lru_cache(maxsize=1024)
def _shown(pod_token: str, lease: str, place: str, half_lives: int) -> str:
    claims = Claims(lease.rpartition("/")[2], lease, "pod", half_lives * _HALF_LIFE_S, (), (place,))
    return sign(_seed(pod_token), claims)[0]


@lru_cache(maxsize=256)
def _is_of_this_machine(host: str) -> bool:
    """Whether a signed address is one of this machine's: only such a one can be bound."""
    for family, *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as bound:
            try:
                bound.bind(place)
            except OSError:
                continue
            return True
    return False
