"""The Secrets of a deployment on Kubernetes, made by a program that runs beside it.

podracer-tokens            the tokens themselves, from which the others are made again where one is deleted
podracer-authority         signs the certificates (tls.crt, tls.key)
podracer-tokens-<role>     the tokens that a role is given (`role_folders.py`)
podracer-tls-<role>        its certificate
podracer-s3                keys of the object store

What is there stays, whoever made it, but for a certificate of our authority that is to end: that is made anew. No owner
and no manifest names these Secrets, so they outlive the deployment.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from threading import Event

from cryptography import x509

from podracer_client.deployment_secrets import Authority
from podracer_client.role_folders import given
from podracer_core.errors import AlreadyExists, InvalidInput, NotFound, PodracerError, Unavailable
from podracer_core.kubernetes.api import ClusterApi, Item
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.tls import CA, CERTIFICATE, KEY, role_name

__all__ = ["ClusterSecrets", "keep"]

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""How often it looks whether something is missing."""
_MANAGER = "podracer-secrets"
_TOKENS, _AUTHORITY, _STORE = "podracer-tokens", "podracer-authority", "podracer-s3"
_WITH_TOKENS = {
    "orchestrator": "orchestrator", "leaderboard": "leaderboard", "learner": "learner", "sidecar": "worker",
    "policy": "policy", "client": "client",
}  # fmt: skip
"""The role whose tokens a Secret `podracer-tokens-…` holds; evaluators are given what workers are."""
_WITH_CERTIFICATE = ("orchestrator", "leaderboard", "learner", "policy", "client")
_FORMER = {"client": "podracer-tokens-orchestrator", "control": "podracer-tokens-orchestrator",
           "pod": "podracer-tokens-learner"}  # fmt: skip
"""Where a deployment whose Secrets were made otherwise has its tokens."""
_CERTIFICATE_KEYS = {"ca.crt": CA, "tls.crt": CERTIFICATE, "tls.key": KEY}

Data = Mapping[str, bytes]


class ClusterSecrets:
    """`without` are patterns of names of Secrets that something else makes; `hosts`, `days` as of `create_secrets`."""

    def __init__(self, api: ClusterApi, without: Sequence[str], hosts: Sequence[str], days: int) -> None:
        self._api, self._without, self._hosts, self._days = api, without, hosts, days
        self._told: set[str] = set()

    def ensure(self, *, renew: bool = False) -> None:
        """Make what is missing, renew what is to end (with `renew` every certificate). May be repeated at will."""
        tokens = self._ensure(_TOKENS, self._make_tokens)
        for name, role in _WITH_TOKENS.items() if tokens else ():
            self._ensure(f"podracer-tokens-{name}", partial(_tokens_of, role, tokens))
        self._ensure(_STORE, lambda: {"access-key": _random(), "secret-key": _random()})
        authority = self._authority()
        if authority is not None:
            for role in _WITH_CERTIFICATE:
                self._ensure_certificate(role, authority, renew)

    def _authority(self) -> Authority | None:
        """None where the certificates are not ours to make."""
        roles = [role for role in _WITH_CERTIFICATE if not self._is_left_out(f"podracer-tls-{role}")]
        found = self._get(_AUTHORITY) if roles else {}
        if found is None:
            others = [role for role in roles if self._get(f"podracer-tls-{role}") is not None]
            if others:
                self._tell(
                    f"there are certificates, and no Secret {_AUTHORITY} with the authority that signed them (tls.crt, "
                    "tls.key): none is made and none is renewed; the certificates of another authority would be refused"
                )
                return None
            found = self._ensure(_AUTHORITY, _make_authority, "kubernetes.io/tls")
        if not found:
            return None
        return Authority.parse(found.get("tls.crt", b""), found.get("tls.key", b""), f"the Secret {_AUTHORITY}")

    def _ensure_certificate(self, role: str, authority: Authority, renew: bool) -> None:
        name = f"podracer-tls-{role}"
        if self._is_left_out(name):
            return

        def make() -> Data:
            files = authority.issue(role_name(role), self._hosts, self._days)
            return {key: files[file] for key, file in _CERTIFICATE_KEYS.items()}

        found = self._ensure(name, make, "kubernetes.io/tls")
        if found.get("ca.crt", b"").strip() != authority.certificate.strip():
            self._tell(f"the Secret {name} is of another authority than {_AUTHORITY}: it stays as it is")
        elif renew or _is_to_end(name, found.get("tls.crt", b"")):
            self._api.patch("secrets", name, {"data": _encoded(make())})
            logger.info("the certificate in the Secret %s is renewed for %d days", name, self._days)

    def _ensure(self, name: str, make: Callable[[], Data], kind: str = "Opaque") -> Data:
        """What is in a Secret, which is made where it is missing."""
        if self._is_left_out(name):
            return {}
        found = self._get(name)
        if found is not None:
            return found
        metadata = {
            "name": name,
            "labels": {"app.kubernetes.io/part-of": "podracer", "app.kubernetes.io/managed-by": _MANAGER},
        }
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": _encoded(make())}
        try:
            made = self._api.create("secrets", body)
        except AlreadyExists:  # somebody else was first: theirs stands
            made = self._api.get("secrets", name)
        else:
            logger.info("the Secret %s is made", name)
        return _decoded(made)

    def _get(self, name: str) -> Data | None:
        try:
            return _decoded(self._api.get("secrets", name))
        except NotFound:
            return None

    def _make_tokens(self) -> Data:
        """Those of the deployment as far as it has some."""
        return {role: (self._get(name) or {}).get(role) or _random() for role, name in _FORMER.items()}

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self._without)

    def _tell(self, problem: str) -> None:
        """Once."""
        if problem not in self._told:
            self._told.add(problem)
            logger.warning("%s", problem)


def keep(deployment: ClusterSecrets, stop: Event, *, once: bool, renew: bool) -> None:
    """Look again and again, or `once`, until `stop` is set; waits longer and longer while the API server is away.

    Raises what keeps it from doing so `once`, but for Unavailable; else it says so and goes on.
    """
    waits = Backoff(1.0, 60.0)
    while not stop.is_set():
        try:
            deployment.ensure(renew=renew)
        except PodracerError as error:
            if once and not isinstance(error, Unavailable):
                raise
            logger.warning("the Secrets cannot be looked after, it is tried again: %s", error.message)
            stop.wait(next(waits))
            continue
        if once:
            return
        renew = False
        waits.reset()
        stop.wait(LOOK_S)


def _tokens_of(role: str, tokens: Data) -> Data:
    paths = {f"tokens/{name}": content for name, content in tokens.items()}
    return {path.removeprefix("tokens/"): content for path, content in given(role, paths).items()}


def _make_authority() -> Data:
    authority = Authority.create()
    return {"ca.crt": authority.certificate, "tls.crt": authority.certificate, "tls.key": authority.key}


def _random() -> bytes:
    return secrets.token_urlsafe(32).encode() + b"\n"


def _is_to_end(name: str, pem: bytes) -> bool:
    """Whether a third of its time is left, or less."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidInput(f"the Secret {name} holds no certificate: {error}", reason="BAD_TLS") from error
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return 3 * left <= certificate.not_valid_after_utc - certificate.not_valid_before_utc


def _encoded(data: Data) -> dict[str, str]:
    return {key: base64.b64encode(content).decode() for key, content in data.items()}


def _decoded(secret: Item) -> Data:
    return {key: base64.b64decode(content) for key, content in (secret.get("data") or {}).items()}
