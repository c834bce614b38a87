"""The few calls of the Kubernetes API that Podracer makes. They block; each has a deadline and is
made once.

jobs.batch     list, watch, get, create, delete
pods           list, watch, patch
podtemplates   list, watch
configmaps     get
events         list
secrets        get, create, patch
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError

from podracer_core.errors import (
    AlreadyExists,
    Exhausted,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    PreconditionFailed,
    Unavailable,
)
from podracer_platform.kubernetes.access import ClusterAccess

Item = dict[str, Any]
"""An object of the API, as JSON."""
Resource = Literal["jobs", "pods", "podtemplates", "configmaps", "events", "secrets"]
Selector = Mapping[str, str]
"""`labelSelector` or `fieldSelector` of a list or a watch."""

EXPIRED = "EXPIRED"
"""Reason of a PreconditionFailed: the server no longer has the changes after that resource version;
list again."""

WATCH_S = 60
"""How long the server keeps a watch open; the next one begins where it ended."""
CALLS = 8
"""The most calls at a time, watches not included."""
_WATCHES = 3
_CONNECT_S, _ANSWER_S = 5.0, 10.0
_PAGE = 500
_MAX_LINE_BYTES = 16 << 20
_LACKS_A_VERB = re.compile(r"\bcannot \w+ (resource|path)\b")
"""The text of a refusal by an authorizer; any other 403 comes from admission: a webhook, a policy,
Pod Security, a quota."""


class Watch:
    """A stream of events. `close` ends it, also from another thread."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[tuple[str, Item]]:
        """(ADDED, MODIFIED, DELETED or BOOKMARK, object). Raises Unavailable, or PreconditionFailed
        (EXPIRED)."""
        with _mapped_failures("the watch"):
            rest = b""
            for chunk in self._response.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    raise Unavailable("an event of the API server is larger than anything it has")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(
                            "watch", int(event["object"].get("code") or 500), event["object"]
                        )
                    yield event["type"], event["object"]

    def close(self) -> None:
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError, HTTPError):
            self._response.close()


class ClusterApi:
    """Calls in one namespace. Safe to use from several threads. Every method raises Unavailable if
    the server does not answer, and PermissionRefused without the permission for the call."""

    def __init__(self, access: ClusterAccess) -> None:
        self.namespace = access.namespace
        self._access = access
        self._http = urllib3.PoolManager(
            num_pools=1,
            maxsize=CALLS + _WATCHES,
            block=False,
            retries=False,
            ssl_context=access.tls,
        )

    def list(self, resource: Resource, selector: Selector) -> tuple[list[Item], str]:
        """The selected objects, and the resource version from which to watch."""
        items: list[Item] = []
        query = {**selector, "limit": str(_PAGE)}
        while True:
            found = self._call("GET", resource, query=query, verb="list")
            items += found.get("items") or []
            metadata = found.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    def watch(self, resource: Resource, selector: Selector, version: str) -> Watch:
        """The events after a resource version, for at most WATCH_S."""
        query = {
            **selector,
            "resourceVersion": version,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        response = self._send("GET", resource, "", query, None, WATCH_S + _ANSWER_S)
        if response.status != 200:
            self._raise(response, "watch", resource, "")
        return Watch(response)

    def get(self, resource: Resource, name: str) -> Item:
        """Raises NotFound."""
        return self._call("GET", resource, name, verb="get")

    def create(self, resource: Resource, body: Item) -> Item:
        """Create an object and return it as the server has stored it. Raises AlreadyExists,
        Exhausted (a quota), InvalidInput."""
        return self._call("POST", resource, body["metadata"]["name"], body=body, verb="create")

    def patch(self, resource: Resource, name: str, change: Item) -> Item:
        """Change those fields of an object that `change` names. Raises AlreadyExists if it has a
        resourceVersion and that of the object has changed."""
        return self._call("PATCH", resource, name, body=change, verb="patch")

    def delete_job(
        self, name: str, uid: str, propagation: Literal["Foreground", "Background"]
    ) -> None:
        """Delete a Job and its pods: the Job after its pods, or before them, even if an earlier
        call made it wait for them. Does nothing if the Job does not exist."""
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": propagation,
            "preconditions": {"uid": uid},
        }
        try:
            self._call("DELETE", "jobs", name, body=body, verb="delete")
        except (NotFound, AlreadyExists):  # gone, or another one of that name
            return

    def warnings(self, name: str) -> Sequence[str]:
        """The recent warnings of controllers about an object, oldest first."""
        query = {"fieldSelector": f"involvedObject.name={name},type=Warning", "limit": str(_PAGE)}
        found = self._call("GET", "events", query=query, verb="list")
        events = sorted(
            found.get("items") or [],
            key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "",
        )
        return [str(event.get("message", "")) for event in events]

    def close(self) -> None:
        self._http.clear()

    def _call(
        self,
        method: str,
        resource: Resource,
        name: str = "",
        *,
        verb: str,
        query: Mapping[str, str] | None = None,
        body: Item | None = None,
    ) -> Item:
        path_name = "" if method == "POST" else name
        with _mapped_failures(f"{verb} {resource}"):
            response = self._send(method, resource, path_name, query or {}, body, _ANSWER_S)
            if response.status >= 300:
                self._raise(response, verb, resource, name)
            found = json.loads(response.data)
        if not isinstance(found, dict):
            raise Unavailable(
                f"the API server has answered {verb} {resource} with something else than an object"
            )
        return found

    def _send(
        self,
        method: str,
        resource: Resource,
        name: str,
        query: Mapping[str, str],
        body: Item | None,
        answer_s: float,
    ) -> urllib3.BaseHTTPResponse:
        group = "/apis/batch/v1" if resource == "jobs" else "/api/v1"
        place = f"{resource}/{name}" if name else resource
        url = f"{self._access.server}{group}/namespaces/{self.namespace}/{place}"
        form = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with _mapped_failures(f"the API server {self._access.server}"):
            return self._http.request(
                method,
                f"{url}?{urlencode(query)}" if query else url,
                body=None if body is None else json.dumps(body).encode(),
                headers={
                    "Content-Type": form,
                    "Accept": "application/json",
                    **self._access.headers(),
                },
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=answer_s),
                preload_content="watch" not in query,
                redirect=False,
            )

    def _raise(
        self, response: urllib3.BaseHTTPResponse, verb: str, resource: str, name: str
    ) -> NoReturn:
        try:
            status = json.loads(response.data)
        except ValueError:
            status = {}
        group = f"{resource}.batch" if resource == "jobs" else resource
        what = f"{verb} {group}{f' {name}' if name else ''} in the namespace {self.namespace}"
        raise _refusal(what, response.status, status if isinstance(status, dict) else {})


def _refusal(what: str, code: int, status: Item) -> PodracerError:
    """The error for a Status of the API."""
    said = str(status.get("message") or f"HTTP {code}")
    message = f"{what}: {said}"
    if code == 404:
        return NotFound(message)
    if code == 409:
        return AlreadyExists(message)
    if code == 410:
        return PreconditionFailed(message, reason=EXPIRED)
    if code == 403 and "exceeded quota" in said:
        return Exhausted(said, reason="QUOTA_EXCEEDED")
    if code == 401:
        return PermissionRefused(f"{what}: the API server rejects this token: {said}")
    if code == 403 and (_LACKS_A_VERB.search(said) or not status):
        return PermissionRefused(f"not permitted to {what}: {said}")
    if code in (400, 403, 405, 413, 415, 422) or "failed calling webhook" in said:
        return InvalidInput(message, reason="REFUSED_BY_CLUSTER")
    return Unavailable(message)


@contextmanager
def _mapped_failures(what: str) -> Iterator[None]:
    try:
        yield
    except (HTTPError, OSError) as error:
        raise Unavailable(f"{what}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"{what}: the answer is not an API object: {error!r}") from error
