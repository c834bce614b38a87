"""The tokens and certificates of a deployment: made, renewed, and written for the roles."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from podracer_client.files import write_private
from podracer_core.errors import InvalidInput, NotFound
from podracer_platform.rpc.resource_names import check_label, parse
from podracer_platform.rpc.shown_tokens import POD_KEYS, public_key
from podracer_platform.rpc.signed_tokens import PUBLIC_KEYS, REVOKED, Claims, sign
from podracer_platform.rpc.tls import CA, CERTIFICATE, KEY, role_name
from podracer_platform.rpc.tokens import (
    FILE_ROLES,
    FileToken,
    Role,
    create_secret_file,
    create_tokens,
    hash_tokens,
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
_BEFORE = datetime.timedelta(hours=1)  # clocks differ
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
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
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
