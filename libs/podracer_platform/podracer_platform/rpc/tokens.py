"""The secrets of a deployment. They are compared by their SHA-256 in constant time, and no object
here shows one in its `repr`.

token files    of the roles; a client presents the last line of its own
lease tokens   `lease.LEASE.FENCE.MAC`, valid for one lease under one fence
signed tokens  `pdr1.CLAIMS.SIGNATURE`: whose it is, for what and until when. `podracer token
               create` makes them. CLAIMS is a JSON object and SIGNATURE the Ed25519 signature of
               all that stands before it, both in base64url. A server has only public keys and the
               ids that it refuses, in `public_keys` and `revoked` of its folder of tokens, one a
               line
shown tokens   signed tokens that a learner shows to its workers and evaluators, where user code
               runs: each is for one lease and one address, and ends within a minute. The learner
               signs them with a key that it derives from its pod token. A worker or an evaluator
               has the public key only, so what it is shown opens no other one, no other pod's, and
               no orchestrator
"""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from podracer_core.errors import InvalidInput, Unauthenticated, Unavailable
from podracer_platform.rpc.address import parse_address
from podracer_platform.rpc.resource_names import is_name

logger = logging.getLogger(__name__)

TokenSource = Callable[[], str]
"""Gives the token to present now; called once for each rpc."""


class Role(enum.StrEnum):
    """The role of a token's holder. LeaseTokens makes those of LEASE, those of VIEWER are signed:
    no file has them."""

    CLIENT = "client"
    VIEWER = "viewer"
    POD = "pod"
    CONTROL = "control"
    LEASE = "lease"


HASHED = "sha256:"
"""What a digest in place of a token begins with."""
FILE_ROLES = (Role.CLIENT, Role.POD, Role.CONTROL)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of a token file: `TOKEN` or `sha256:DIGEST`, and the projects that it is for; None:
    all."""

    word: str = field(repr=False)
    digest: bytes = field(repr=False)
    projects: frozenset[str] | None

    @classmethod
    def parse(cls, text: str, path: Path) -> _Line:
        """Raises InvalidInput for a malformed digest or project."""
        word, *names = text.split()
        digest = _digest(word)
        if word.startswith(HASHED):
            if not re.fullmatch(r"[0-9a-f]{64}", word.removeprefix(HASHED)):
                raise _bad_line(
                    path, f"after {HASHED} there must be 64 lower-case hexadecimal digits"
                )
            digest = bytes.fromhex(word.removeprefix(HASHED))
        if not all(is_name("project", name) for name in names):
            raise _bad_line(
                path, "after the token there may be names of projects, such as projects/research"
            )
        return cls(
            word,
            digest,
            frozenset(name.removeprefix("projects/") for name in names) if names else None,
        )


Entry = TypeVar("Entry")


class WatchedFile(Generic[Entry]):
    """The entries of one file, one a line; read again whenever the file changes."""

    def __init__(self, path: Path, parse: Callable[[str, Path], Entry]) -> None:
        self.path = path
        self._parse = parse
        self._stamp: tuple[int, int, int] | None = None
        self._entries: tuple[Entry, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def current(self) -> tuple[Entry, ...]:
        """`read` for a caller, who does not see what is wrong. Raises Unavailable when the file
        cannot be read."""
        try:
            return self.read()
        except InvalidInput as error:
            logger.error("%s", error)
            raise Unavailable(
                "this server cannot read its token files now", reason="TOKEN_FILE_UNREADABLE"
            ) from error

    def read(self) -> tuple[Entry, ...]:
        """The entries now, none where there is no file. Raises InvalidInput when the file cannot be
        read."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                lines = self.path.read_text(encoding="ascii").splitlines()
                self._entries = tuple(
                    self._parse(line, self.path) for line in lines if line.strip()
                )
                self._stamp = stamp
                if status.st_mode & 0o007:
                    logger.warning(
                        "token file %s is open to every user of this machine: chmod 600", self.path
                    )
        except FileNotFoundError:
            self._stamp, self._entries = None, ()
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"token file {self.path} cannot be read: {error.__class__.__name__}",
                reason="TOKEN_FILE_UNREADABLE",
                path=self.path,
            ) from error
        return self._entries


class TokenFiles:
    """The tokens that a server accepts: a directory with a file for each role, `client`, `pod`,
    `control`.

    Without a role's file the server accepts no token of that role. To rotate a token, add the new
    one as a second line, move every caller to it, then remove the first; no restart is needed.

    A line is a token, or `sha256:` and its digest (`hash_token`), which a reader of the file cannot
    present. Project names after it (`TOKEN projects/a projects/b`) limit the token to these
    projects."""

    def __init__(self, directory: Path) -> None:
        """Raises InvalidInput when the directory holds no token at all, or a file cannot be
        read."""
        self.directory = directory
        self._files = {role: WatchedFile(directory / role, _Line.parse) for role in FILE_ROLES}
        found = [file.read() for file in self._files.values()]
        if not any(found) and not (directory / PUBLIC_KEYS).exists():
            names = ", ".join(FILE_ROLES)
            raise InvalidInput(
                f"no token in {directory}: expected a file with one token a line, named {names}",
                reason="NO_TOKENS",
                path=directory,
            )

    def __repr__(self) -> str:
        return f"TokenFiles({str(self.directory)!r})"

    def find(self, token: str) -> tuple[Role, frozenset[str] | None] | None:
        """The role whose file holds `token`, and its projects (None: all), or None. Looks at every
        known token.

        Raises Unavailable when a file that changed cannot be read.
        """
        presented = _digest(token)
        found: tuple[Role, frozenset[str] | None] | None = None
        for role, file in self._files.items():
            for line in file.current():
                if hmac.compare_digest(presented, line.digest):
                    found = role, line.projects
        return found


class FileToken:
    """A client's TokenSource: the last line of a token file, read again whenever the file
    changes."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidInput when the file is absent, unreadable or empty."""
        self._file = WatchedFile(path, _Line.parse)
        self()

    @property
    def path(self) -> Path:
        return self._file.path

    def __repr__(self) -> str:
        return f"FileToken({str(self._file.path)!r})"

    def __call__(self) -> str:
        lines = self._file.read()
        if not lines:
            raise InvalidInput(
                f"no token in {self._file.path}", reason="NO_TOKENS", path=self._file.path
            )
        if lines[-1].word.startswith(HASHED):
            message = (
                f"{self._file.path} holds the digest of a token, which only a server has a use for"
            )
            raise InvalidInput(message, reason="NO_TOKENS", path=self._file.path)
        return lines[-1].word


class LeaseTokens:
    """Makes and checks `lease.<lease>.<fence>.<mac>`, which is valid for one lease under one fence
    only.

    The mac is HMAC-SHA256 under a secret, so the same lease always has the same token (a repeated
    LeaseWork gets the same answer) and nothing needs to be stored. It does not check whether the
    lease is still held."""

    PREFIX = "lease."

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 32:
            raise InvalidInput(
                f"the lease secret has {len(secret)} bytes, expected 32 or more",
                reason="WEAK_SECRET",
            )
        self._secret = secret

    def __repr__(self) -> str:
        return "LeaseTokens(…)"

    def issue(self, lease_id: str, fence: int) -> str:
        """The token of a lease; `lease_id` is printable ASCII without spaces:
        `projects/p/leases/x`."""
        if (
            not lease_id
            or not lease_id.isascii()
            or not lease_id.isprintable()
            or " " in lease_id
            or fence < 0
        ):
            raise InvalidInput(f"lease {lease_id!r} with fence {fence} cannot be put into a token")
        return f"{self.PREFIX}{lease_id}.{fence}.{self._mac(lease_id, str(fence))}"

    def verify(self, token: str) -> tuple[str, int]:
        """The (lease id, fence) that a token was issued for. Raises Unauthenticated when it was not
        issued here."""
        parts = token.removeprefix(self.PREFIX).rsplit(".", 2)
        if token.startswith(self.PREFIX) and len(parts) == 3:
            lease_id, fence, mac = parts
            if hmac.compare_digest(mac.encode(), self._mac(lease_id, fence).encode()):
                return lease_id, int(fence)
        raise Unauthenticated("the lease token was not issued here", reason="UNKNOWN_TOKEN")

    def _mac(self, lease_id: str, fence: str) -> str:
        message = b"\0".join((b"podracer-lease-v1", lease_id.encode(), fence.encode()))
        return _encode(hmac.digest(self._secret, message, hashlib.sha256))


def create_tokens(directory: Path) -> Mapping[Role, Path]:
    """Make a random token file for each role that has none yet (mode 0600, in a folder of mode
    0700).

    Existing files stay as they are, so a second start in the same folder still knows its processes.
    Raises InvalidInput when the folder cannot be written.
    """
    paths = {role: directory / role for role in FILE_ROLES}
    for path in paths.values():
        create_secret_file(path)
    return paths


def create_secret_file(path: Path) -> None:
    """Write a random token to `path` unless it exists; atomic, even if this process is killed."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        with contextlib.suppress(FileExistsError):  # someone else was first: theirs stands
            path.hardlink_to(draft)
        draft.unlink()
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}", reason="TOKEN_FILE_UNWRITABLE", path=path
        ) from error


def hash_token(token: str) -> str:
    """The form of `token` in a server's file: its digest."""
    return HASHED + _digest(token).hex()


def hash_tokens(text: str) -> str:
    """`hash_token` of a whole token file, projects included."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    hashed = (
        [word if word.startswith(HASHED) else hash_token(word), *projects]
        for word, *projects in lines
    )
    return "".join(f"{' '.join(words)}\n" for words in hashed)


def _bad_line(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"token file {path}: {problem}", reason="TOKEN_FILE_INVALID", path=path)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


SIGNED_PREFIX = "pdr1."
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
    signed = SIGNED_PREFIX + _encode(json.dumps(asdict(claims)).encode())
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
        return Claims(**json.loads(decoded(signed.removeprefix(SIGNED_PREFIX))))
    except (InvalidSignature, ValueError, TypeError):
        return None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


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
