"""Objects in an S3 bucket, through the MinIO client: the store of a cluster.

The holder of a lease (LeasedStore) reaches it without keys of its own: the job's objects with keys
of a session, all others, or all if the server gives no such keys, by signed URLs."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.credentials import providers
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from minio.datatypes import Object
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry, Timeout

from podracer_core.config import Seconds, Secret, format_seconds
from podracer_core.errors import (
    DeadlineExpired,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_core.storage import (
    CHUNK_BYTES,
    Ask,
    ObjectInfo,
    ObjectStore,
    StoreAccess,
    StoreKeys,
    check_key,
    check_prefix,
    open_source,
)
from podracer_platform.rpc import Backoff
from podracer_platform.settings import load_settings

logger = logging.getLogger(__name__)

_PART_BYTES = 16 << 20  # larger objects are stored in parts of this size
_CHECK_ATTEMPTS, _CHECK_TIMEOUT_S = 2, 5.0  # a broken connection that was kept open is no outage
_MISSING = ("NoSuchKey", "NoSuchBucket")
# a server that was restarted may have forgotten an upload of several parts
_AGAIN = ("NoSuchUpload",)
_HINTS = {
    "AccessDenied": "these keys may not do that, or the server wants some",
    "ExpiredToken": "the session token has expired",
    "InvalidAccessKeyId": "the access key is wrong (PODRACER_S3_ACCESS_KEY)",
    "InvalidTokenId": "the session token is wrong (PODRACER_S3_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "the clocks of this machine and of the server differ by more than the "
    "server allows",
    "SignatureDoesNotMatch": "the secret key is wrong (PODRACER_S3_SECRET_KEY)",
    "XMinioStorageFull": "the server's disk is full",
}
_UNTRUSTED = (
    "its certificate is not for this name, or not signed by an authority that we trust "
    "(PODRACER_S3_CA_FILE names ours)"
)
_MOST_SKEW_S = 300.0
_CODE_IN_BODY = re.compile(r"<Code>([A-Za-z]+)</Code>")


@dataclass(frozen=True)
class S3Settings:
    """The S3 server's address and credentials.

    endpoint        https://host or http://host:port
    access_key, secret_key   leave both out to use AWS's default credentials: its variables, its
                    file of keys, or the role of the service account (web identity), of the
                    container or of the instance
    session_token   of temporary keys
    region          of the bucket; most self-hosted servers ignore it
    addressing      path: https://host/bucket, virtual: https://bucket.host, auto: virtual for the
                    public clouds that ask for it, path for others
    ca_file         certificates (PEM) of the authority that signed the server's; unset:
                    SSL_CERT_FILE, then the usual ones
    create_bucket   make a missing bucket when the store is opened
    connect_timeout, read_timeout   of one attempt
    attempts        times that a request which can be repeated is tried, with growing, jittered
                    waits between
    """

    endpoint: str
    access_key: Secret | None = None
    secret_key: Secret | None = None
    session_token: Secret | None = None
    region: str = "us-east-1"
    addressing: Literal["auto", "path", "virtual"] = "auto"
    ca_file: Path | None = None
    create_bucket: bool = True
    connect_timeout: Seconds = 5.0
    read_timeout: Seconds = 30.0
    attempts: int = 5

    @classmethod
    def from_environment(cls) -> S3Settings:
        """The settings in PODRACER_S3_ENDPOINT, PODRACER_S3_ACCESS_KEY or
        PODRACER_S3_ACCESS_KEY_FILE, and so on."""
        return load_settings(cls, prefix="PODRACER_S3_")


class S3Store(ObjectStore):
    """Keys below a prefix of a bucket. Requests are signed over their content, so the server
    refuses altered bytes."""

    def __init__(
        self, bucket: str, prefix: str, settings: S3Settings, *, create: bool = True
    ) -> None:
        """Raises permanent errors: NotFound for a missing bucket that may not be made, wrong keys
        or settings. An unreachable server is no error here: requests raise Unavailable until it is
        back."""
        self._bucket = bucket
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._place = f"{self.url} at {settings.endpoint}"
        self._attempts = settings.attempts
        self._region = settings.region
        self._create = create and settings.create_bucket
        self._found = False
        self._settings = settings
        self._http = _make_http_client(settings)
        self._quick_http = _make_http_client(_quick(settings))
        with mapped_errors(self._place):
            self._identity = _make_identity(settings, self._quick_http)
            self._client = make_client(settings, self._identity, self._http)
            self._quick_client = make_client(settings, self._identity, self._quick_http)
        with contextlib.suppress(Unavailable):
            self.check()

    def check(self) -> None:
        """Raise unless the store answers and has the bucket, without long retries. A bucket that
        was never seen is made if allowed; one that has disappeared is not made again, as it had
        objects."""
        try:
            with mapped_errors(self._place):
                self._probe()
        except NotFound as error:
            if self._found or not self._create:
                raise NotFound(
                    f"{self._place}: there is no bucket {self._bucket!r}", bucket=self._bucket
                ) from error
            with mapped_errors(self._place):
                self._make_bucket()
        except Unavailable as error:
            raise Unavailable(
                error.message.replace(self._place, f"{self._place} is away", 1)
            ) from error
        self._found = True

    def _probe(self) -> None:
        next(iter(self._quick_client.list_objects(self._bucket, f"{self._prefix}check/")), None)

    def put(self, key: str, data: bytes | Path) -> None:
        name = self._prefix + check_key(key)
        what = f"{self.url}: cannot store {key!r}"
        if not self._found:  # the server was unreachable when the store was opened
            self.check()
        with open_source(data) as stream, mapped_errors(what):
            size_bytes = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self._client.put_object(self._bucket, name, stream, size_bytes, part_size=_PART_BYTES)

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        name = self._prefix + check_key(key)
        offset, etag = 0, ""
        waits = Backoff(0.1, 2.0, attempts=self._attempts - 1)
        while True:
            # After a broken connection the download continues at the same byte, if the object has
            # not changed.
            headers: dict[str, str | list[str] | tuple[str]] = (
                {"If-Match": etag} if offset and etag else {}
            )
            with mapped_errors(f"{self.url}: cannot read {key!r}"):
                response = self._client.get_object(
                    self._bucket, name, offset, request_headers=headers
                )
                try:
                    etag = response.headers.get("ETag", "")
                    while chunk := response.read(chunk_bytes):
                        offset += len(chunk)
                        yield chunk
                    return
                except HTTPError:
                    wait_s = next(waits, None)
                    if wait_s is None:
                        raise
                    time.sleep(wait_s)
                finally:
                    response.close()
                    response.release_conn()

    def stat(self, key: str) -> ObjectInfo:
        name = self._prefix + check_key(key)
        with mapped_errors(f"{self.url}: cannot read {key!r}"):
            found = self._client.stat_object(self._bucket, name)
            return ObjectInfo(key, found.size or 0, _utc(found.last_modified))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        name = self._prefix + check_prefix(prefix)
        with mapped_errors(f"{self.url}: cannot list {prefix!r}"):
            for found in self._client.list_objects(self._bucket, name, recursive=True):
                if found.object_name and not found.is_dir:
                    key = found.object_name.removeprefix(self._prefix)
                    yield ObjectInfo(key, found.size or 0, _utc(found.last_modified))

    def delete(self, key: str) -> None:
        name = self._prefix + check_key(key)
        with contextlib.suppress(NotFound), mapped_errors(f"{self.url}: cannot delete {key!r}"):
            self._client.remove_object(self._bucket, name)

    def session_keys(self, reads: str, writes: str, lifetime_s: float) -> StoreKeys | None:
        allowed = {reads: ["s3:GetObject"], writes: ["s3:PutObject", "s3:AbortMultipartUpload"]}
        folder = f"arn:aws:s3:::{self._bucket}/{self._prefix}"
        allow = [
            {"Action": actions, "Resource": folder + pattern}
            for pattern, actions in allowed.items()
            if pattern
        ]
        policy = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow"} | each for each in allow],
        }
        try:
            with mapped_errors(f"{self._place}: cannot make keys of a session"):
                own = self._identity.retrieve()
                keys = providers.AssumeRoleProvider(
                    sts_endpoint=self._settings.endpoint, access_key=own.access_key,
                    secret_key=own.secret_key, duration_seconds=int(lifetime_s),
                    policy=json.dumps(policy), region=self._region, http_client=self._quick_http,
                ).retrieve()  # fmt: skip
        except InvalidInput as error:
            logger.info("a pod gets signed URLs: %s", error.message)
            return None
        return StoreKeys(keys.access_key, keys.secret_key, keys.session_token or "")

    def signed_url(self, method: str, key: str, lifetime_s: float) -> str:
        name, lifetime = self._prefix + check_key(key), timedelta(seconds=lifetime_s)
        with mapped_errors(f"{self.url}: cannot sign {key!r}"):
            return self._client.get_presigned_url(method, self._bucket, name, expires=lifetime)

    def close(self) -> None:
        self._http.clear()
        self._quick_http.clear()

    def _make_bucket(self) -> None:
        try:
            self._quick_client.make_bucket(self._bucket, location=self._region)
        except MinioException:
            if not self._quick_client.bucket_exists(self._bucket):  # else another process was first
                raise


def _make_http_client(settings: S3Settings) -> urllib3.PoolManager:
    """Like the MinIO client's own, but with these time-outs and jittered retries. POST is not
    repeated."""
    retries = Retry(
        total=settings.attempts - 1,
        backoff_factor=0.1,
        backoff_jitter=0.2,
        backoff_max=5.0,
        status_forcelist=[429, 500, 502, 503, 504],
        raise_on_status=False,  # the last answer says what is wrong
    )
    return urllib3.PoolManager(
        maxsize=10,
        timeout=Timeout(connect=settings.connect_timeout, read=settings.read_timeout),
        retries=retries,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(settings.ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where()),
    )


def _quick(settings: S3Settings) -> S3Settings:
    """The settings of checks, which their callers repeat."""
    return replace(
        settings,
        connect_timeout=min(settings.connect_timeout, _CHECK_TIMEOUT_S),
        read_timeout=min(settings.read_timeout, _CHECK_TIMEOUT_S),
        attempts=min(settings.attempts, _CHECK_ATTEMPTS),
    )


class _AwsIdentity(providers.Provider):
    """AWS's default credentials of this machine. Keys are fetched again before they expire."""

    def __init__(self, http: urllib3.PoolManager) -> None:
        self._role = providers.IamAwsProvider(http_client=http)

    def retrieve(self) -> Credentials:
        """Raises Unavailable if there are none: AWS may have them later."""
        for keys in (providers.EnvAWSProvider(), providers.AWSConfigProvider()):
            with contextlib.suppress(ValueError):
                return keys.retrieve()
        try:
            return self._role.retrieve()
        except (HTTPError, OSError, ValueError) as error:
            raise HTTPError(
                f"no keys are set (PODRACER_S3_ACCESS_KEY), and AWS gives none here: {error}"
            ) from error


def _make_identity(settings: S3Settings, http: urllib3.PoolManager) -> providers.Provider:
    if (settings.access_key is None) != (settings.secret_key is None):
        raise InvalidInput(
            "the S3 access key and secret key go together; only one is set",
            reason="INVALID_S3_KEYS",
        )
    if settings.access_key is not None and settings.secret_key is not None:
        token = None if settings.session_token is None else settings.session_token.reveal()
        return providers.StaticProvider(
            settings.access_key.reveal(), settings.secret_key.reveal(), token
        )
    if settings.session_token is not None:
        raise InvalidInput(
            "an S3 session token needs the keys that it belongs to", reason="INVALID_S3_KEYS"
        )
    return _AwsIdentity(http)


def make_client(
    settings: S3Settings,
    identity: providers.Provider,
    http: urllib3.PoolManager,
    kind: Callable[..., Minio] = Minio,
) -> Minio:
    parts = urlsplit(settings.endpoint)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username
        or parts.path.strip("/")
    ):
        raise InvalidInput(
            "the S3 endpoint must be of the form https://host or http://host:port, without a path "
            "or a user",
            reason="INVALID_S3_ENDPOINT",
        )
    client = kind(
        parts.netloc,
        credentials=identity,
        secure=parts.scheme == "https",
        region=settings.region,
        http_client=http,
    )
    if settings.addressing == "path":
        client.disable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    elif settings.addressing == "virtual":
        client.enable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    return client


def _utc(moment: datetime | None) -> datetime:
    return moment.astimezone(UTC) if moment else datetime.fromtimestamp(0, UTC)


@contextlib.contextmanager
def mapped_errors(what: str) -> Iterator[None]:
    """The client's exceptions -> PodracerError, whose message starts with `what`."""
    try:
        yield
    except S3Error as error:
        date = error.response.headers.get("Date") or ""
        raise _error(
            what, error.response.status, error.code or "", error.message or "", date
        ) from error
    except ServerError as error:
        raise _error(what, error.status_code, "", "") from error
    except InvalidResponseError as error:
        # Raised for every answer that does not call itself application/xml; some servers say
        # text/xml.
        code = _CODE_IN_BODY.search(error._body or "")
        raise _error(what, error._code, code[1] if code else "", "") from error
    except HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise PreconditionFailed(f"{what}: {_UNTRUSTED}", reason="UNTRUSTED_SERVER") from error
        reason = error.reason if isinstance(error, MaxRetryError) else None
        raise Unavailable(f"{what}: {reason or error}") from error
    except ValueError as error:  # what the client says of bucket names and the like
        raise InvalidInput(f"{what}: {error}") from error


def _clock_hint(date: str) -> str:
    """A hint if the server's clock and this one differ so much that it refuses every signature."""
    try:
        skew_s = (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return ""
    if abs(skew_s) < _MOST_SKEW_S:
        return ""
    return (
        f"the server's clock is {format_seconds(abs(skew_s))} "
        f"{'ahead of' if skew_s > 0 else 'behind'} ours"
    )


def _error(what: str, status: int, code: str, message: str, date: str = "") -> PodracerError:
    """The error of a server's answer. `code`: S3's error code; `date`: the server's time of the
    answer."""
    hint = _clock_hint(date) if status in (401, 403) else ""
    said = hint or _HINTS.get(code) or message or code or "the server refused"
    text = f"{what}: {said} (HTTP {status}{f', {code}' if code and said != code else ''})"
    if code in _AGAIN:
        return Unavailable(text)
    if code in _MISSING or status == 404:
        return NotFound(text)
    if status in (401, 403) or (code in _HINTS and status < 500):  # some say 400
        return PermissionRefused(text)
    # 412: altered while it was being read
    if status in (408, 409, 412, 429) or status >= 500 or status < 400:
        return Unavailable(text)
    return InvalidInput(text)


_RETRY_S = (1.0, 30.0)
_REFRESH = 2 / 3  # of the time for which keys and URLs are valid


class LeaseAccess(Provider):
    """Keys and URLs of a lease, each kept for two thirds of its time. If new ones cannot be had
    then, the former ones serve to their end, and the question is repeated with growing, jittered
    waits."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock, self._waits = ask, clock, Backoff(*_RETRY_S)
        self._known: dict[tuple[str, str], tuple[StoreAccess, float, float]] = {}

    def of(self, method: str = "GET", key: str = "") -> StoreAccess:
        """The keys, or the URL of an object."""
        answer, refresh_at, end_at = self._known.get((method, key), (StoreAccess(0.0), 0.0, 0.0))
        if (now := self._clock()) >= refresh_at:
            try:
                answer = self._ask(method, key)
                refresh_at = now + _REFRESH * answer.validity_s
                end_at = now + answer.validity_s
                self._waits.reset()
            except (Unavailable, DeadlineExpired):
                if now >= end_at:
                    raise
                refresh_at = now + next(self._waits)
            self._known[method, key] = answer, refresh_at, end_at
        return answer

    def retrieve(self) -> Credentials:
        if (keys := self.of().keys) is None:
            raise PermissionRefused("a lease has no keys for this", reason="NOT_OF_LEASE")
        return Credentials(keys.access_key, keys.secret_key, keys.session_token)


class LeasedStore(S3Store):
    """It is reached by `under` alone, and cannot list or delete."""

    def under(self, ask: Ask, own: str) -> ObjectStore:
        leased, access = copy.copy(self), LeaseAccess(ask)  # connections are shared
        kind = partial(_LeasedClient, access, self._prefix, own)
        leased._client = make_client(self._settings, access, self._http, kind)
        return leased

    def _probe(self) -> None:
        # without a lease it refuses everything
        self._quick_http.request("GET", self._settings.endpoint)


class _LeasedClient(Minio):
    """The client with the keys of a lease where they reach, else with URLs."""

    def __init__(
        self, access: LeaseAccess, prefix: str, own: str, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._access, self._prefix, self._own = access, prefix, own

    def put_object(self, bucket: str, name: str, data: Any, length: int, **options: Any) -> Any:  # type: ignore[override]
        if url := self._url("PUT", name):
            return self._request("PUT", url, {"Content-Length": str(length)}, data).close()
        return super().put_object(bucket, name, data, length, **options)

    def get_object(  # type: ignore[override]
        self, bucket: str, name: str, offset: int = 0, **options: Any
    ) -> BaseHTTPResponse:
        if url := self._url("GET", name):
            headers = {**(options.get("request_headers") or {}), "Range": f"bytes={offset}-"}
            return self._request("GET", url, headers if offset else {})
        return super().get_object(bucket, name, offset, **options)

    def stat_object(self, bucket: str, name: str) -> Object:  # type: ignore[override]
        if url := self._url("GET", name):
            found = self._request("GET", url, {})
            found.close()
            return Object(bucket, name, size=int(found.headers["Content-Length"]))
        return super().stat_object(bucket, name)

    def _url(self, method: str, name: str) -> str:
        """The URL of an object; empty if there are keys for it."""
        key = name.removeprefix(self._prefix)
        has_keys = key.startswith(self._own) and self._access.of().keys is not None
        return "" if has_keys else self._access.of(method, key).url

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: Any = None
    ) -> BaseHTTPResponse:
        answer = self._http.request(method, url, body=body, headers=headers, preload_content=False)
        if answer.status >= 400:
            text = answer.read().decode(errors="replace")
            raise InvalidResponseError(answer.status, answer.headers.get("Content-Type", ""), text)
        return answer
