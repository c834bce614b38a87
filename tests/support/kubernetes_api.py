"""An API server of Kubernetes on the loopback interface: enough of one for the orchestrator's pool,
and for what a real one cannot be told to do. tests/cluster has the rest, on a real one.

It keeps state, validates what it is sent, holds callers to their Role, serves lists and watches
with resource versions, bookmarks and expiry, and can be told to be away. Who makes pods of Jobs is
in kubernetes_cluster.py."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from support.kubernetes_store import KINDS, ApiError, Item, Store, matches

NAMESPACE = "podracer"
ORCHESTRATOR = "orchestrator-token"
BOOKMARK_S = 0.5


class Api:
    """The server; `calls` are (verb, resource) of everything that the orchestrator's account was
    granted.

    role     rules of the Role that holds the orchestrator's account; None: it may do everything
    faults   what is answered in place of the truth: (verb, resource) and a list of errors, one for
             each call
    lost     likewise, where what was asked is done all the same
    """

    def __init__(self, store: Store, role: Item | None = None, tls: Path | None = None) -> None:
        self.store, self.role = store, role
        self.calls: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], list[ApiError]] = {}
        self.lost: dict[tuple[str, str], list[ApiError]] = {}
        self._tls = tls
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._open: set[Any] = set()  # connections
        self.is_open = threading.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """At the same port each time."""
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls / "cert.pem", self._tls / "key.pem")
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.is_open.set()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Go away in the middle of everything."""
        self.is_open.clear()
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(2)

    def kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for the orchestrator's account."""
        cluster = {"server": self.url}
        if self._tls is not None:
            cluster["certificate-authority"] = str(self._tls / "ca.pem")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [
                {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
            ],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": ORCHESTRATOR}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def authorize(self, token: str, verb: str, resource: str, name: str) -> None:
        """Raises ApiError: 401, or 403 where the Role does not grant it."""
        if token != ORCHESTRATOR:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        group = "batch" if resource == "jobs" else ""
        for rule in (
            self.role or {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
        )["rules"]:
            granted = (
                ({group, "*"}, rule["apiGroups"]),
                ({resource, "*"}, rule["resources"]),
                ({verb, "*"}, rule["verbs"]),
                ({name}, rule.get("resourceNames") or [name]),
            )
            if all(wanted & set(given) for wanted, given in granted):
                self.calls.append((verb, resource))
                return
        full = f"{resource}.batch" if group else resource
        account = f"system:serviceaccount:{NAMESPACE}:podracer-orchestrator"
        raise ApiError(
            403, "Forbidden",
            f'{full} is forbidden: User "{account}" cannot {verb} resource "{resource}" in API '
            f'group "{group}" in the namespace "{NAMESPACE}"',
        )  # fmt: skip

    def add_connection(self, connection: Any) -> None:
        self._open.add(connection)

    def drop_connection(self, connection: Any) -> None:
        self._open.discard(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break are a part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: Api

    def setup(self) -> None:
        super().setup()
        self.api.add_connection(self.connection)

    def finish(self) -> None:
        self.api.drop_connection(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Quiet."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library's names

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        try:
            found = self._act(json.loads(text) if text else {})
        except ApiError as error:
            self._send(error.code, error.status)
        else:
            if found is not None:
                self._send(201 if self.command == "POST" else 200, found)

    def _act(self, body: Item) -> Item | None:
        parts, api = urlsplit(self.path), self.api
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        words = parts.path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        if len(words) < 3 or words[0] != "namespaces" or words[2] not in KINDS:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        namespace, resource, name = words[1], words[2], words[3] if len(words) > 3 else ""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        is_watch = query.get("watch") in ("true", "1")
        verb = {
            "GET": "get" if name else "watch" if is_watch else "list",
            "POST": "create",
        }.get(self.command, self.command.lower())
        # as the real one does
        named = query.get("fieldSelector", "").removeprefix("metadata.name=")
        api.authorize(token, verb, resource, name or named)
        if faults := api.faults.get((verb, resource)):
            raise faults.pop(0)
        if verb == "watch":
            self._watch(resource, query)
            return None
        found = self._do(verb, resource, namespace, name, query, body)
        if lost := api.lost.get((verb, resource)):
            raise lost.pop(0)
        return found

    def _do(
        self, verb: str, resource: str, namespace: str, name: str, query: dict[str, str], body: Item
    ) -> Item:
        store = self.api.store
        if verb == "list":
            return self._list(resource, query)
        if verb == "create":
            return store.create(resource, namespace, body)
        if verb == "get":
            return store.get(resource, name)
        if verb == "delete":
            return delete(store, resource, name, body)
        return store.update(resource, _merged(store.get(resource, name), body))

    def _list(self, resource: str, query: dict[str, str]) -> Item:
        store = self.api.store
        with store.changed:
            version = store.version
            found = store.find(
                resource, query.get("labelSelector", ""), query.get("fieldSelector", "")
            )
        limit, begin = int(query.get("limit") or 0), int(query.get("continue") or 0)
        metadata = {"resourceVersion": str(version)}
        if limit and begin + limit < len(found):
            metadata["continue"] = str(begin + limit)
        api_version, kind = KINDS[resource]
        items = found[begin : begin + limit] if limit else found
        return {
            "apiVersion": api_version,
            "kind": f"{kind}List",
            "metadata": metadata,
            "items": items,
        }

    def _watch(self, resource: str, query: dict[str, str]) -> None:
        store, version = self.api.store, int(query.get("resourceVersion") or 0)
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 60)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version = version or store.version
        bookmark_at = time.monotonic() + BOOKMARK_S
        while time.monotonic() < deadline and self.api.is_open.is_set():
            with store.changed:
                events, is_all = store.since(resource, version)
                if not events and is_all:
                    store.changed.wait(0.2)
                    events, is_all = store.since(resource, version)
            if not is_all:
                status = ApiError(
                    410, "Expired", f"too old resource version: {version} ({store.oldest})"
                ).status
                self._chunk({"type": "ERROR", "object": status})
                break
            for at, kind, item in events:
                version = at
                if matches(item, labels, fields):
                    self._chunk({"type": kind, "object": item})
            if query.get("allowWatchBookmarks") and time.monotonic() >= bookmark_at:
                bookmark_at = time.monotonic() + BOOKMARK_S
                with store.changed:
                    if store.since(resource, version) == ([], True):
                        version = store.version
                api_version, of_kind = KINDS[resource]
                mark = {
                    "kind": of_kind,
                    "apiVersion": api_version,
                    "metadata": {"resourceVersion": str(version)},
                }
                self._chunk({"type": "BOOKMARK", "object": mark})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Item) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _send(self, code: int, body: Item) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def delete(store: Store, resource: str, name: str, options: Item) -> Item:
    """As the API server does: at once, or marked until what it owns, or runs, is gone."""
    with store.changed:
        item = store.get(resource, name)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != item["metadata"]["uid"]:
            raise ApiError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        if resource == "pods" or options.get("propagationPolicy") == "Foreground":
            if not item["metadata"].get("deletionTimestamp"):
                item["metadata"]["deletionTimestamp"] = time.strftime(
                    "%Y-%m-%dT%H:%M:%SZ", time.gmtime()
                )
                if resource == "pods":
                    grace_s = item["spec"].get("terminationGracePeriodSeconds", 30)
                    item["metadata"]["deletionGracePeriodSeconds"] = grace_s
                item["metadata"]["finalizers"] = (
                    ["foregroundDeletion"] if resource != "pods" else []
                )
                item = store.update(resource, item)
            return item
        store.remove(resource, name)
        details = {"name": name, "kind": resource, "uid": item["metadata"]["uid"]}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }


def _merged(current: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(current, dict):
        return patch
    merged = {key: value for key, value in current.items() if key not in patch}
    return merged | {
        key: _merged(current.get(key, {}), value)
        for key, value in patch.items()
        if value is not None
    }
