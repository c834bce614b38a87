"""The Secrets of a deployment on Kubernetes, made by a program in the cluster.

podracer-tokens            the tokens themselves, from which the others are made again where one is
                           deleted; from it the files for signed tokens are kept up to date in all
                           of them
podracer-authority         signs the certificates (tls.crt, tls.key)
podracer-tokens-<role>     the tokens that a role is given (`deployment.py`)
podracer-tls-<role>        its certificate; podracer-tls-store is that of the cluster's own object
                           store
podracer-s3                keys of the object store, for the orchestrator
podracer-minio             keys of the cluster's own object store's administrator
podracer-web               key of the live page

Existing Secrets stay, whatever made them. Only certificates of this authority are renewed before
they expire. No owner and no manifest names these Secrets, so they outlive the deployment."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache, partial
from threading import Event

from cryptography import x509

from podracer_client.secrets.deployment import Authority, role_secrets
from podracer_core.errors import AlreadyExists, InvalidInput, NotFound, PodracerError, Unavailable
from podracer_platform.kubernetes.api import ClusterApi
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.rpc.shown_tokens import POD_KEYS
from podracer_platform.rpc.signed_tokens import PUBLIC_KEYS, REVOKED
from podracer_platform.rpc.tls import CA, CERTIFICATE, KEY

__all__ = ["ClusterSecrets", "keep"]

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""How often it checks for missing Secrets."""
_LABELS = {
    "app.kubernetes.io/part-of": "podracer",
    "app.kubernetes.io/managed-by": "podracer-secrets",
}
_AUTHORITY, _TLS = "podracer-authority", "kubernetes.io/tls"
_ROLES = ("orchestrator", "leaderboard", "learner", "policy", "client")
"""Roles that have tokens; workers and evaluators have theirs in `podracer-tokens-sidecar`, and no
certificate."""
_CERTIFIED = (*_ROLES, "store")
_FORMER = {"client": "orchestrator", "control": "orchestrator", "pod": "learner"}
"""Role whose Secret holds each token itself in a deployment whose Secrets were made in another
way."""
_CURRENT = (PUBLIC_KEYS, REVOKED, POD_KEYS)
_FILES = {"ca.crt": CA, "tls.crt": CERTIFICATE, "tls.key": KEY}

Data = Mapping[str, bytes]
_warn_once = cache(logger.warning)


class ClusterSecrets:
    """`without`: name patterns of Secrets to leave alone; `hosts`, `days`: as in
    `create_secrets`."""

    def __init__(
        self, api: ClusterApi, without: Sequence[str], hosts: Sequence[str], days: int
    ) -> None:
        self._api, self._without, self._hosts, self._days = api, without, hosts, days

    def ensure(self, *, renew: bool = False) -> None:
        """Make missing Secrets and renew expiring certificates (with `renew` all of them).
        Idempotent."""
        tokens = self._ensure("podracer-tokens", self._make_tokens)
        for role, name in (
            [*((role, role) for role in _ROLES), ("worker", "sidecar")] if tokens else ()
        ):
            found = self._ensure(f"podracer-tokens-{name}", partial(_tokens_of, role, tokens))
            current = {
                key: value for key, value in _tokens_of(role, tokens).items() if key in _CURRENT
            }
            if found and not current.items() <= found.items():
                self._api.patch("secrets", f"podracer-tokens-{name}", {"data": _encoded(current)})
        for name in ("podracer-s3", "podracer-minio"):
            self._ensure(name, lambda: {"access-key": _random(), "secret-key": _random()})
        self._ensure("podracer-web", lambda: {"key": _random()})
        roles = [role for role in _CERTIFIED if not self._is_left_out(f"podracer-tls-{role}")]
        if (
            roles
            and not self._get(_AUTHORITY)
            and any(self._get(f"podracer-tls-{role}") for role in roles)
        ):
            _warn_once(
                f"certificates exist, but the Secret {_AUTHORITY} of the authority that signed "
                "them (tls.crt, tls.key) does not: restore it; until then no certificate is made "
                "or renewed"
            )
        elif roles:
            found = self._ensure(_AUTHORITY, _make_authority, _TLS)
            authority = Authority.parse(
                found.get("tls.crt", b""), found.get("tls.key", b""), f"Secret {_AUTHORITY}"
            )
            for role in roles:
                self._ensure_certificate(role, authority, renew)

    def _ensure_certificate(self, role: str, authority: Authority, renew: bool) -> None:
        def make() -> Data:
            files = authority.issue(role, self._hosts, self._days)
            return {key: files[file] for key, file in _FILES.items()}

        name = f"podracer-tls-{role}"
        found = self._ensure(name, make, _TLS)
        if found.get("ca.crt", b"").strip() != authority.certificate.strip():
            _warn_once(
                f"the certificate in the Secret {name} was not signed by {_AUTHORITY}: it is left "
                "unchanged"
            )
        elif renew or _is_to_end(name, found.get("tls.crt", b"")):
            self._api.patch("secrets", name, {"data": _encoded(make())})
            logger.info("renewed the certificate in the Secret %s for %d days", name, self._days)

    def _ensure(self, name: str, make: Callable[[], Data], kind: str = "Opaque") -> Data:
        """The data of a Secret, which is made if it is missing; empty if it is left out."""
        if self._is_left_out(name):
            return {}
        if found := self._get(name):
            return found
        metadata = {"name": name, "labels": _LABELS}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": kind,
            "data": _encoded(make()),
        }
        try:
            self._api.create("secrets", body)
            logger.info("created the Secret %s", name)
        except AlreadyExists:
            logger.info("the Secret %s exists already: another process created it", name)
        return self._get(name)

    def _get(self, name: str) -> Data:
        """The data of a Secret; empty if there is none."""
        try:
            data = self._api.get("secrets", name).get("data") or {}
        except NotFound:
            return {}
        return {key: base64.b64decode(content) for key, content in data.items()}

    def _make_tokens(self) -> Data:
        """The tokens that the deployment has already, and new ones for the rest."""
        return {
            name: self._get(f"podracer-tokens-{role}").get(name) or _random()
            for name, role in _FORMER.items()
        }

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self._without)


def keep(deployment: ClusterSecrets, stop: Event, *, once: bool, renew: bool) -> None:
    """Check repeatedly, or `once`, until `stop` is set, with back-off while the API server does not
    answer.

    With `once` it raises errors other than Unavailable; otherwise it logs them and continues.
    """
    waits = Backoff(1.0, 60.0)
    while not stop.is_set():
        try:
            deployment.ensure(renew=renew)
        except PodracerError as error:
            if once and not isinstance(error, Unavailable):
                raise
            logger.warning("cannot check the Secrets, retrying: %s", error.message)
            stop.wait(next(waits))
            continue
        if once:
            return
        renew = False
        waits.reset()
        stop.wait(LOOK_S)


def _tokens_of(role: str, tokens: Data) -> Data:
    paths = {f"tokens/{name}": content for name, content in tokens.items()}
    return {
        path.removeprefix("tokens/"): content for path, content in role_secrets(role, paths).items()
    }


def _make_authority() -> Data:
    authority = Authority.create()
    return {
        "ca.crt": authority.certificate,
        "tls.crt": authority.certificate,
        "tls.key": authority.key,
    }


def _random() -> bytes:
    return secrets.token_urlsafe(32).encode() + b"\n"


def _is_to_end(name: str, pem: bytes) -> bool:
    """Whether at most a third of the certificate's validity is left."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidInput(
            f"the Secret {name} holds no certificate: {error}", reason="BAD_TLS"
        ) from error
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return 3 * left <= certificate.not_valid_after_utc - certificate.not_valid_before_utc


def _encoded(data: Data) -> dict[str, str]:
    return {key: base64.b64encode(content).decode() for key, content in data.items()}
