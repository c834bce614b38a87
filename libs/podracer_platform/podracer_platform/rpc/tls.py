"""TLS on both sides of every hop: this process's certificate, and the authority that it trusts.

A name in a certificate is a role (`learner.podracer`), not an address: pods come and go, and so do
their addresses."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from podracer_core.errors import InvalidInput

logger = logging.getLogger(__name__)

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"


def role_name(role: str) -> str:
    """The name in the certificate of a role: learner -> learner.podracer."""
    return f"{role}.podracer"


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """A client's certificates as PEM, for a key that is not stored in a file."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel that presents this certificate and trusts those of the
        authority."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


class TlsFolder:
    """A folder with `ca.pem` (the trusted authority), `cert.pem` and `key.pem` (this process's
    certificate).

    A server checks for changed files at every handshake, so they can be renewed without a restart;
    a channel reads them when it is made."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidInput if a file is missing, cannot be read, or is not PEM."""
        self._path = path
        self._read()
        if (path / KEY).stat().st_mode & 0o007:
            logger.warning("%s is open to every user of this machine: chmod 600", path / KEY)

    def __repr__(self) -> str:
        return f"TlsFolder({str(self._path)!r})"

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a server that requires client certificates signed by the same
        authority."""
        stamps = self._stamps()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """The new files where they have changed, None where they have not; the former stay
            where they are bad."""
            nonlocal stamps
            try:
                if (now := self._stamps()) == stamps:
                    return None
                fresh = self._configuration()
            except (InvalidInput, OSError) as error:
                logger.error("certificates were not renewed: %s", error)
                return None
            stamps = now
            logger.info("certificates in %s have been renewed", self._path)
            return fresh

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            fetch,  # type: ignore[arg-type]  # it may answer None, for no change
            require_client_authentication=True,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a channel that presents its own certificate and trusts those of the
        authority."""
        return TlsMaterial(*self._read()).channel_credentials()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        authority, certificate, key = self._read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        contents = []
        for name in (CA, CERTIFICATE, KEY):
            try:
                content = (self._path / name).read_bytes()
            except OSError as error:
                raise _bad(self._path / name, error.strerror or "cannot be read") from error
            if not content.lstrip().startswith(b"-----BEGIN "):
                raise _bad(self._path / name, "is not PEM: it does not begin with -----BEGIN")
            contents.append(content)
        return contents[0], contents[1], contents[2]

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        found = [(self._path / name).stat() for name in (CA, CERTIFICATE, KEY)]
        return tuple((status.st_mtime_ns, status.st_ino) for status in found)


def _bad(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(
        f"TLS: {path}: {problem}; expected a folder with {CA}, {CERTIFICATE} and {KEY}",
        reason="BAD_TLS",
        path=path,
    )
