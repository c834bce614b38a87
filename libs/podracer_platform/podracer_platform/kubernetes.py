"""A light client of the Kubernetes API: its access (the service account in the cluster, else a
kubeconfig), the few calls that Podracer makes, and the label by which a Service finds the active
one of the two Pods of a StatefulSet. The calls block; each has a deadline and is made once.

jobs.batch     list, watch, get, create, delete
pods           list, watch, patch
podtemplates   list, watch
configmaps     get
events         list
secrets        get, create, patch
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import math
import os
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import urlencode

import urllib3
import yaml
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


logger = logging.getLogger(__name__)

LABEL = "podracer.dev/active"
REPLICAS = 2
EVERY_S, RETRY_S = 15.0, 2.0


async def keep_active_label(pod: str, check_active: Callable[[], Awaitable[None]]) -> None:
    """Runs forever: keep the label on the Pod `pod` of this process, and off the other Pods of its
    StatefulSet.

    `check_active` raises if another process has taken over; it is called each time. Outside a
    cluster this does nothing."""
    api: ClusterApi | None = None
    while pod and "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            api = api or ClusterApi(in_cluster())
            await check_active()
            await asyncio.to_thread(move_label, api, pod)
            await asyncio.sleep(EVERY_S)
        except PodracerError as error:
            logger.warning("cannot point the Service at this pod, retrying: %s", error.message)
            await asyncio.sleep(RETRY_S)


def move_label(api: ClusterApi, pod: str) -> None:
    """Remove the label from the other Pods, then add it to `pod`: never do two Pods have it."""
    name = pod.rpartition("-")[0]
    for other in {f"{name}-{ordinal}" for ordinal in range(REPLICAS)} - {pod}:
        with suppress(NotFound):
            api.patch("pods", other, {"metadata": {"labels": {LABEL: None}}})
    api.patch("pods", pod, {"metadata": {"labels": {LABEL: "true"}}})
