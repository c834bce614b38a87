"""A Hugging Face hub of one machine: what huggingface_hub asks for to push and fetch a repository
of models."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" * 6 + "c0ff"


class Hub:
    """One repository; `requests` are the paths that were asked for, `created` what was said of
    it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.created: dict[str, Any] = {}
        self.tokens: set[str] = set()
        self.url = ""

    def answer(self, path: str, body: bytes) -> Any:
        """The JSON of an API call."""
        if path.endswith("/repos/create"):
            self.created = json.loads(body)
            return {"url": f"{self.url}/{self.created['organization']}/{self.created['name']}"}
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            return {
                "files": [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in files
                ]
            }
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {
                "success": True,
                "commitOid": COMMIT,
                "commitUrl": f"{self.url}/ann/lander/commit/{COMMIT}",
            }
        if path.startswith("/api/models/"):
            files = [{"rfilename": name, "size": len(data)} for name, data in self.files.items()]
            return {"id": "ann/lander", "sha": COMMIT, "siblings": files}
        return {}


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.requests.append(path)
            hub.tokens.add(self.headers.get("Authorization", ""))
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            data = hub.files.get(name) if name else json.dumps(hub.answer(path, body)).encode()
            self.send_response(200 if data is not None else 404)
            data = data or b""
            self.send_header("Content-Length", str(len(data)))
            self.send_header(
                "Content-Type", "application/octet-stream" if name else "application/json"
            )
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_HEAD = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
