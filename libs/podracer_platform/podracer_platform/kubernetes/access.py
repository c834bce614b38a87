"""The API server's address and this process's credentials: a service account in the cluster, else a
kubeconfig."""

from __future__ import annotations

import base64
import binascii
import math
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from podracer_core.errors import InvalidInput, Unavailable

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_S = 30.0
"""A service account's token changes about once an hour: this is how often its file is read
again."""


@dataclass
class ClusterAccess:
    """`server` is a URL, `namespace` where the pods live. A token file is read again regularly."""

    server: str
    namespace: str
    tls: ssl.SSLContext | None = None
    token: str = ""
    token_file: Path | None = None
    _read_at: float = field(default=-math.inf, init=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def headers(self) -> Mapping[str, str]:
        """The credentials of a call. If the token's file becomes unreadable, the previous token
        stays in use.

        Raises OSError or Unavailable while there is no token yet: no call is made without one.
        """
        if self.token_file is not None:
            # a thread that comes meanwhile waits for the token of the first one
            with self._reading:
                if time.monotonic() - self._read_at >= _TOKEN_S:
                    self._read(self.token_file)
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _read(self, file: Path) -> None:
        try:
            self.token = file.read_text().strip() or self.token
        except OSError:
            if not self.token:
                raise
        if not self.token:
            raise Unavailable(
                f"the token of the service account, {file}, is empty", reason="NO_CLUSTER"
            )
        self._read_at = time.monotonic()


def in_cluster(
    account: Path = ACCOUNT, environment: Mapping[str, str] = os.environ
) -> ClusterAccess:
    """The access of a pod in the cluster. Raises InvalidInput if this process is not in one, or has
    no service account."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        raise _wrong(
            "this process is in no cluster (KUBERNETES_SERVICE_HOST is not set), and "
            "PODRACER_KUBECONFIG neither"
        )
    missing = [
        name for name in ("token", "ca.crt", "namespace") if not os.access(account / name, os.R_OK)
    ]
    if missing:
        raise _wrong(
            f"{account} lacks {', '.join(missing)}: this pod needs a service account, "
            "and automountServiceAccountToken: true"
        )
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=(account / "namespace").read_text().strip(),
        tls=_context(account / "ca.crt", ca_file=str(account / "ca.crt")),
        token_file=account / "token",
    )


def read_kubeconfig(path: Path) -> ClusterAccess:
    """The access by the current context of a kubeconfig: a token, or a client certificate. Raises
    InvalidInput."""
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(config, dict) or not isinstance(config.get("current-context"), str):
        raise _wrong(f"{path} is no kubeconfig with a current-context")
    context = _named(path, config, "context", config["current-context"])
    cluster = _named(path, config, "cluster", context.get("cluster"))
    user = _named(path, config, "user", context.get("user"))
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise _wrong(f"{path}: the cluster's server is {server!r}, expected https://host:port")
    token, certificate = user.get("token", ""), _content(path, user, "client-certificate")
    if user and not (token or certificate):
        raise _wrong(
            f"{path}: the user has {', '.join(user)}, expected a token or a client certificate "
            "with its key"
        )
    tls = None
    if server.startswith("https://"):
        ca = _content(path, cluster, "certificate-authority")
        tls = _context(path, ca_data=ca.decode() if ca else None)
        if cluster.get("insecure-skip-tls-verify") is True:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if certificate:
            _present(path, tls, certificate + b"\n" + _content(path, user, "client-key"))
    return ClusterAccess(server.rstrip("/"), context.get("namespace") or "default", tls, token)


def _named(path: Path, config: Mapping[str, Any], kind: str, name: Any) -> Mapping[str, Any]:
    """An entry of one of the lists of a kubeconfig."""
    for entry in config.get(f"{kind}s") or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            found = entry.get(kind) or {}
            if isinstance(found, dict):
                return found
    raise _wrong(f"{path} has no {kind} {name!r}")


def _content(path: Path, entry: Mapping[str, Any], key: str) -> bytes:
    """The content of the file named by `key`, or of `key`-data; empty if neither exists."""
    try:
        if f"{key}-data" in entry:
            return base64.b64decode(entry[f"{key}-data"])
        return (path.parent / entry[key]).read_bytes() if key in entry else b""
    except (OSError, binascii.Error, TypeError) as error:
        raise _wrong(f"{path}: {key}: {error}") from error


def _context(path: Path, ca_file: str | None = None, ca_data: str | None = None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    except (OSError, ValueError) as error:
        raise _wrong(
            f"{path}: the certificates of the authority cannot be used: {error}"
        ) from error


def _present(path: Path, tls: ssl.SSLContext, pem: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:  # the library takes nothing but files
        file.write(pem)
        file.flush()
        try:
            tls.load_cert_chain(file.name)
        except (OSError, ValueError) as error:
            raise _wrong(
                f"{path}: the client certificate and its key cannot be used: {error}"
            ) from error


def _wrong(problem: str) -> InvalidInput:
    return InvalidInput(f"no cluster: {problem}", reason="NO_CLUSTER")
