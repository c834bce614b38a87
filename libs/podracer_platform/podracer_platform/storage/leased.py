"""An S3 bucket as the holder of a lease reaches it, without keys of its own: the job's objects with
keys of a session, all others, or all if the server gives no such keys, by signed URLs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from minio.datatypes import Object
from minio.error import InvalidResponseError
from urllib3 import BaseHTTPResponse

from podracer_core.errors import DeadlineExpired, PermissionRefused, Unavailable
from podracer_core.storage.object_store import Ask, ObjectStore, StoreAccess
from podracer_platform.rpc.backoff import Backoff
from podracer_platform.storage.s3 import S3Store, make_client

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
