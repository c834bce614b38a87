"""The tokens, certificates and keys of a deployment: made, renewed, and written for the roles; in a
folder, or by a program in a cluster as Secrets of Kubernetes:

podracer-tokens            the tokens themselves, from which the others are made again where one is
                           deleted; from it the files for signed tokens are kept up to date in all
                           of them
podracer-authority         signs the certificates (tls.crt, tls.key)
podracer-tokens-<role>     the tokens that a role is given (`role_secrets`)
podracer-tls-<role>        its certificate; podracer-tls-store is that of the cluster's own object
                           store
podracer-s3                keys of the object store, for the orchestrator
podracer-minio             keys of the cluster's own object store's administrator
podracer-web               key of the live page

Existing Secrets stay, whatever made them. Only certificates of this authority are renewed before
they expire. No owner and no manifest names these Secrets, so they outlive the deployment."""

from __future__ import annotations

import base64
import ipaddress
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from threading import Event

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from podracer_client.files import write_private
from podracer_core.errors import AlreadyExists, InvalidInput, NotFound, PodracerError, Unavailable
from podracer_platform.kubernetes import ClusterApi
from podracer_platform.rpc import (
    CA,
    CERTIFICATE,
    FILE_ROLES,
    KEY,
    POD_KEYS,
    PUBLIC_KEYS,
    REVOKED,
    Backoff,
    Claims,
    FileToken,
    Role,
    check_label,
    create_secret_file,
    create_tokens,
    hash_tokens,
    parse,
    public_key,
    role_name,
    sign,
)

ROLES = ("orchestrator", "leaderboard", "learner", "worker", "evaluator", "policy", "client")
"""The roles that have a certificate, beside the servers of HOSTS."""
HOSTS = {"store": ("minio", "podracer-minio", "127.0.0.1"), "database": ("postgres",)}
"""Servers of others' making, by the names at which their callers verify them."""
_STORE = ("store/access_key", "store/secret_key")
_ROOT = ("store/root_user", "store/root_password")
_MINIO = {CERTIFICATE: "public.crt", KEY: "private.key", CA: "CAs/public.crt"}
_SIGNED = (f"tokens/{PUBLIC_KEYS}", f"tokens/{REVOKED}")
_GIVEN = {
    "orchestrator": (
        "tokens/client",
        "tokens/pod",
        "tokens/control",
        *_SIGNED,
        *_STORE,
        "database/pgpass",
    ),
    "leaderboard": ("tokens/client", "tokens/control", *_SIGNED, "database/pgpass"),
    "learner": ("tokens/pod", *_SIGNED),
    "worker": ("tokens/pod", *_SIGNED),
    "evaluator": ("tokens/pod", *_SIGNED),
    "policy": ("tokens/client", "tokens/control", *_SIGNED),
    "client": ("tokens/client",),
    "store": _STORE + _ROOT,
    "database": ("database/password",),
}
"""The files of each role besides the certificate. `store` and `database` are the servers
themselves."""
_KNOWN = {
    "orchestrator": ("tokens/pod",),
    "leaderboard": ("tokens/client", "tokens/control"),
    "worker": ("tokens/pod",),
    "evaluator": ("tokens/pod",),
    "policy": ("tokens/control",),
}
"""Tokens that a role only verifies: it gets their digests, which grant no access."""
_AUTHORITY_DAYS = 3650
_BEFORE = timedelta(hours=1)  # clocks differ
_EXTENSION_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def create_secrets(
    folder: Path, hosts: Sequence[str] = (), days: int = 365, *, renew: bool = False
) -> list[Path]:
    """Make the missing files below `folder` (mode 0600); with `renew` also new certificates of all
    roles.

    hosts   names and addresses in the certificates beside the role and HOSTS, for callers that do
            not use roles
    Returns the written files. Raises InvalidInput if the folder cannot be written.
    """
    if days < 1:
        raise InvalidInput(
            f"a certificate is to be valid for a day at least, not {days}", reason="INVALID_DAYS"
        )
    try:
        before = set(folder.rglob("*"))
        create_tokens(folder / "tokens")
        for path in (*_STORE, *_ROOT, "database/password"):
            create_secret_file(folder / path)
        pgpass = folder / "database" / "pgpass"
        if not pgpass.exists():
            write_private(pgpass, b"*:*:*:*:" + (folder / "database" / "password").read_bytes())
        authority = _load_or_create(folder / "tls" / "ca")
        written: list[Path] = []
        for role in (*ROLES, *HOSTS):
            place = folder / "tls" / role
            if renew or not (place / CERTIFICATE).exists():
                for name, content in authority.issue(role, hosts, days).items():
                    write_private(place / name, content)
                    written.append(place / name)
        written += fill_role_folders(folder)
    except OSError as error:
        message = f"cannot write below {folder}: {error.strerror}"
        raise InvalidInput(message, reason="FOLDER_UNWRITABLE", path=folder) from error
    new = {path for path in folder.rglob("*") if path.is_file()} - before
    return sorted(new | set(written))


def fill_role_folders(folder: Path) -> list[Path]:
    """Bring the copies below `folder`/roles up to date; returns those that were written."""
    written = []
    for role, paths in _GIVEN.items():
        contents = role_secrets(
            role, {path: (folder / path).read_bytes() for path in paths if (folder / path).exists()}
        )
        tls = folder / "tls" / role
        names = _MINIO if role == "store" else {name: name for name in _MINIO}
        contents |= {
            f"tls/{copy}": (tls / name).read_bytes() for name, copy in names.items() if tls.is_dir()
        }
        for path, content in contents.items():
            copy = folder / "roles" / role / path
            if not copy.exists() or copy.read_bytes() != content:
                write_private(copy, content)
                written.append(copy)
        for copy in (folder / "roles" / role).rglob("*"):  # a version before has given more
            if copy.is_file() and str(copy.relative_to(folder / "roles" / role)) not in contents:
                copy.unlink()
    return written


def role_secrets(role: str, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a role by path, without its certificate."""
    known, paths = _KNOWN.get(role, ()), [path for path in _GIVEN[role] if path in contents]
    given = {
        path: hash_tokens(contents[path].decode()).encode() if path in known else contents[path]
        for path in paths
    }
    if role in ("worker", "evaluator") and "tokens/pod" in contents:
        words = [
            line.split()[0] for line in contents["tokens/pod"].decode().splitlines() if line.strip()
        ]
        given[f"tokens/{POD_KEYS}"] = "".join(f"{public_key(word)}\n" for word in words).encode()
    return given


def _load_or_create(folder: Path) -> Authority:
    if (folder / CA).exists():
        return Authority.parse((folder / CA).read_bytes(), (folder / KEY).read_bytes(), str(folder))
    authority = Authority.create()
    write_private(folder / KEY, authority.key)
    write_private(folder / CA, authority.certificate)  # last: with it the authority is there
    return authority


class Authority:
    """Signs certificates."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def create(cls) -> Authority:
        """A new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "podracer authority")])
        certificate = (
            _builder(name, name, key, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def parse(cls, certificate: bytes, key: bytes, place: str) -> Authority:
        """An authority from PEM. Raises InvalidInput, naming the `place` where it lies."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"{place} holds no authority: {error}", reason="BAD_TLS", path=place
            ) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise InvalidInput(
                f"the key of {place} is not one that podracer has made",
                reason="BAD_TLS",
                path=place,
            )
        return cls(parsed, private)

    @property
    def certificate(self) -> bytes:
        """The certificate in PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The key in PEM."""
        return _pem_key(self._key)

    def issue(self, role: str, hosts: Sequence[str], days: int) -> Mapping[str, bytes]:
        """A new key and certificate of a role, and this authority's certificate, by the names of
        their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = (role_name(role), *HOSTS.get(role, ()), *hosts)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = (
            _builder(subject, self._certificate.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_EXTENSION_USES), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(one) for one in names]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return {
            CA: self.certificate,
            KEY: _pem_key(key),
            CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM),
        }


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidInput(
            f"{host!r} is neither a host's name nor an address", reason="INVALID_HOST"
        ) from error


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def create_token(
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


def issued_tokens(folder: Path) -> list[tuple[Claims, str]]:
    """Every token, the oldest first, and whether it is valid, expired or revoked."""
    revoked, now = _lines(folder / "tokens" / REVOKED), time.time()
    found = [Claims(**json.loads(line)) for line in _lines(folder / "signing" / "issued")]
    return [
        (it, "revoked" if it.id in revoked else "valid" if it.expires > now else "expired")
        for it in found
    ]


def revoke_token(folder: Path, which: str) -> list[str]:
    """Revoke the token of an id, or all of a name; returns their ids. Raises NotFound if there is
    none."""
    found = [claims.id for claims, _ in issued_tokens(folder) if which in (claims.id, claims.name)]
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
