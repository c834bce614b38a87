"""Object stores beyond a folder; no torch.

s3            s3://bucket/prefix
leased        s3://bucket/prefix with the keys of a lease
spool         a folder of this machine on the way to a store
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from podracer_core.errors import InvalidInput
from podracer_core.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from podracer_platform.storage.s3 import S3Settings

__all__ = ["open_store"]


def open_store(
    url: str, s3: S3Settings | None = None, *, create: bool = True, leased: bool = False
) -> ObjectStore:
    """The store at `file:///absolute/path` or `s3://bucket/prefix`, checked to be usable.

    A missing folder or bucket is made, unless `create` is false (then NotFound). `leased`: a bucket
    without keys in the settings is reached under leases only (`ObjectStore.under`). `s3`: address
    and keys of the S3 server; by default from the environment (PODRACER_S3_ENDPOINT, …). An
    unreachable server is no error: `check` raises then, and the store works once the server is
    back. Raises InvalidInput, NotFound, PermissionRefused or PreconditionFailed, each naming the
    url."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        from podracer_core.storage.folder import FolderStore

        return FolderStore(Path(unquote(parts.path)), create=create)
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        from podracer_platform.storage.s3 import S3Settings, S3Store

        settings = s3 or S3Settings.from_environment()
        if leased and settings.access_key is None:
            from podracer_platform.storage.leased import LeasedStore

            return LeasedStore(parts.netloc, parts.path.strip("/"), settings)
        return S3Store(parts.netloc, parts.path.strip("/"), settings, create=create)
    shown = "s3://…@…" if "@" in parts.netloc else url
    raise InvalidInput(
        f"object store {shown!r}: expected file:///absolute/path or s3://bucket/prefix",
        reason="INVALID_STORE_URL",
    )
