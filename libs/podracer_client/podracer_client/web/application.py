"""The page over HTTP: access, its files, one stream of updates per client, and actions on jobs, the
same as the commands.

Only a browser that has the key and uses one of the page's host names has access. A page of another
site cannot read or act: the Host is checked against DNS rebinding, the cookie is SameSite=Strict,
and an action needs the page's Origin and a header that a form cannot send."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from podracer_client.jobs import Client, Job, check_jobs, create_jobs
from podracer_client.local import StateFolder
from podracer_client.names import job_name, short_name
from podracer_client.policies import MANIFEST, film, parsed_arguments
from podracer_client.servers import DEFAULT_FOLDER
from podracer_client.web.following import LOGS, Feed, JobFollowing, JobsFollowing, Upstream
from podracer_core.errors import (
    Exhausted,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    Unauthenticated,
    Unavailable,
)
from podracer_platform.jobs import parse_experiment
from podracer_platform.rpc import TokenSource

Asked = Mapping[str, Any]
Act = Callable[[Client, Asked], dict[str, Any]]
KEPT = 16


class Videos:
    """Films one video at a time, and keeps the newest KEPT. `state_folder` as in `film`."""

    def __init__(self, state_folder: Path | None) -> None:
        self._state_folder = state_folder or DEFAULT_FOLDER
        self._films: dict[str, tuple[str, str]] = {}  # by the checkpoint's prefix; the oldest first
        self._turn = threading.Lock()

    def film(self, client: Client, asked: Asked) -> dict[str, Any]:
        """The video of `agent`'s snapshot on the leaderboard of `job`, and its caption.

        Raises NotFound if the agent is not ranked, Exhausted while another one is filmed, and the
        errors of `film`."""
        job, agent = (str(asked.get(name, "")) for name in ("job", "agent"))
        board = client.leaderboard(client.job(job).message.leaderboard)
        found = next(
            (each for each in board.candidates if short_name(each.agent.name) == agent), None
        )
        if found is None:
            raise NotFound(f"{agent} is not on the leaderboard")
        prefix = found.evaluation.checkpoint.prefix
        if prefix not in self._films:
            if not self._turn.acquire(blocking=False):
                raise Exhausted(
                    "another video is being filmed; try again once it is there", reason="FILMING"
                )
            here = StateFolder.objects_of(self._state_folder) / prefix
            name = f"{found.agent.name}/checkpoints/{short_name(prefix.rstrip('/'))}"
            try:
                policy = str(here) if (here / MANIFEST).is_file() else name
                self._films[prefix] = film(policy, client, self._state_folder)
            finally:
                self._turn.release()
        video, text = self._films[prefix]
        for oldest in list(self._films)[:-KEPT]:
            del self._films[oldest]
        return {
            "video": video,
            "text": f"after {found.evaluation.env_steps:,} training steps: {text}",
        }


def _submit(client: Client, asked: Asked) -> dict[str, Any]:
    """The job of a file's text, or all jobs of its matrix, all checked before the first is
    submitted."""
    # Without a folder, so that the page cannot be asked about the disk of the machine that serves
    # it.
    experiment = parse_experiment(
        _text(asked, "text"), _text(asked, "file") or "job.yaml", folder=None
    )
    if experiment.axes:
        specs = check_jobs(client, experiment.jobs)
        return {
            "jobs": [
                short_name(job.name) for job in create_jobs(client, specs, secrets.token_hex(16))
            ]
        }
    return {"jobs": [short_name(client.submit(experiment.jobs[0]).name)]}


def _fork(client: Client, asked: Asked) -> dict[str, Any]:
    """`set-NAME` for each changed hyperparameter; its value is YAML, as in a job file."""
    changed = [
        f"{name.removeprefix('set-')}={_text(asked, name)}"
        for name in asked
        if name.startswith("set-")
    ]
    hyperparameters = parsed_arguments(changed, "a hyperparameter")
    return {
        "agent": short_name(_job(client, asked).fork_agent(_text(asked, "agent"), hyperparameters))
    }


def _done(act: Callable[[Client, Asked], object]) -> Act:
    """The act, with nothing to answer."""

    def acted(client: Client, asked: Asked) -> dict[str, Any]:
        act(client, asked)
        return {}

    return acted


def _on_agent(method: str) -> Act:
    return _done(lambda client, asked: getattr(_job(client, asked), method)(_text(asked, "agent")))


def _on_job(method: str) -> Act:
    return _done(lambda client, asked: getattr(_job(client, asked), method)())


def _job(client: Client, asked: Asked) -> Job:
    return client.job(_text(asked, "job"))


def _text(asked: Asked, name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: expected a text")
    return value


def _why(asked: Asked) -> str:
    return _text(asked, "reason") or "on the live page"


def _count(asked: Asked, name: str) -> int | None:
    value = asked.get(name)
    if value is not None and type(value) is not int:
        raise InvalidInput(f"{name}: expected a whole number")
    return value


ACTS: Mapping[str, Act] = {
    "submit": _submit,
    "scale": _done(
        lambda client, asked: _job(client, asked).scale(
            least=_count(asked, "min"), most=_count(asked, "max")
        )
    ),
    "promote": _done(
        lambda client, asked: client.promote(
            *(_text(asked, name) for name in ("job", "agent")),
            alias=_text(asked, "alias"),
            reason=_why(asked),
        )
    ),
    "rollback": _done(
        lambda client, asked: client.roll_back(
            _text(asked, "job"), alias=_text(asked, "alias"), reason=_why(asked)
        )
    ),
    "fork": _fork,
    **{method: _on_agent(f"{method}_agent") for method in ("pin", "unpin", "stop")},
    **{method: _on_job(method) for method in ("suspend", "resume", "cancel", "delete")},
}


ACT_HEADER = "x-podracer-web"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {
    "content-security-policy": "default-src 'self'; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_BEFORE_ENTRY = ("/static/enter.js", "/static/style.css", "/static/icon.svg")
STATIC = Path(__file__).parent / "static"
MAX_STREAMS = 64
MAX_BODY_BYTES = 1 << 20
REQUEST_S = 10.0
"""How long a request may take to arrive, headers and body; at most twice as long."""
_STATUS = (
    ((InvalidInput,), 400),
    # the token of this server, not the browser's cookie
    ((Unauthenticated, PermissionRefused), 403),
    ((NotFound,), 404),
    ((Unavailable, Exhausted), 503),
    ((PodracerError,), 409),
)


class Access:
    """ASGI middleware. The key is in the fragment of the URL, which browsers do not send, or the
    user types it; `/api/session` exchanges it for a cookie."""

    def __init__(
        self,
        app: ASGIApp,
        key: TokenSource,
        port: int,
        hosts: Collection[str],
        entrance: Callable[[Request], Awaitable[Response]],
    ) -> None:
        """`key` returns the current key: cookies of another key are invalid, those of the same key
        survive a restart. `hosts`: names besides loopback, with their port unless it is the default
        one. `entrance` answers `/` without the cookie."""
        self._app = app
        self._key = key
        # cookies know no port: two pages of one machine need two names
        self._cookie = f"podracer_web_{port}"
        self._hosts = {*(f"{name}:{port}" for name in LOOPBACK), *hosts}
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is None and request.url.path == "/api/session" and request.method == "POST":
            refusal = await self._enter(request)
        elif (
            refusal is None
            and not self._is_known(request)
            and request.url.path not in _BEFORE_ENTRY
        ):
            refusal = _refused(401, "open the URL that the command printed, or enter its key")
            if request.url.path == "/":
                refusal = await self._entrance(request)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The refusal of another host name, or of an action that another page may have sent."""
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return _refused(421, "the page does not accept this host name; add it with --host")
        is_link = (
            request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
        )  # in a notebook, a chat
        if (
            request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
            and not is_link
        ):
            return _refused(403, "refused: the request comes from another site")
        if request.method in ("GET", "HEAD"):
            return None
        origin = request.headers.get("origin", "")
        if origin not in (f"http://{host}", f"https://{host}") or ACT_HEADER not in request.headers:
            return _refused(403, "refused: only the page itself may send actions")
        return None

    def _is_known(self, request: Request) -> bool:
        given = request.cookies.get(self._cookie, "")
        return hmac.compare_digest(given.encode(), self._session().encode())

    def _session(self) -> str:
        """The cookie's value, which does not reveal the key."""
        return hmac.digest(self._key().encode(), b"podracer-web-session", "sha256").hex()

    async def _enter(self, request: Request) -> Response:
        """Exchange the key for the cookie."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key().encode()):
            return _refused(401, "wrong key for this page")
        response = Response(status_code=204)
        is_https = request.headers["origin"].startswith("https:")
        response.set_cookie(
            self._cookie, self._session(), httponly=True, samesite="strict", secure=is_https
        )
        return response


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"message": message, "lines": []}, status)


class ImpatientProtocol(H11Protocol):
    """HTTP that closes connections on which a request takes too long to arrive: uvicorn has no such
    limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(REQUEST_S, self._close_if_late, None)

    def _close_if_late(self, former: RequestResponseCycle | None) -> None:
        """Close unless a request has begun since the last check, or one is being answered."""
        if self.cycle is former and (
            former is None or former.more_body or former.response_complete
        ):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(REQUEST_S, self._close_if_late, self.cycle)


@dataclass(slots=True)
class _Followed:
    feed: Feed
    following: JobsFollowing | JobFollowing
    clients: int = 0


class Page:
    """The feeds of connected clients, and the actions."""

    def __init__(self, upstream: Upstream, videos: Videos) -> None:
        self._upstream = upstream
        self._acts = {**ACTS, "film": videos.film}
        self._followed: dict[str, _Followed] = {}

    async def stream(self, request: Request) -> Response:
        """Server-sent events: the updates of `?job=`, or of all jobs."""
        name = request.query_params.get("job", "")
        if sum(each.clients for each in self._followed.values()) >= MAX_STREAMS:
            raise Exhausted(f"{MAX_STREAMS} clients are connected to this page, which is the limit")
        news = self._news(job_name(name) if name else "")
        return StreamingResponse(
            news, media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _news(self, name: str) -> AsyncIterator[str]:
        with self._following(name) as feed:
            yield "retry: 1000\n\n"
            async for frame in feed.frames():
                yield (
                    ": still here\n\n"
                    if frame is None
                    else f"data: {json.dumps(frame, separators=(',', ':'))}\n\n"
                )

    @contextmanager
    def _following(self, name: str) -> Iterator[Feed]:
        """Follow a job (an empty name: all jobs) once for all its clients."""
        if name not in self._followed:
            feed = Feed(asyncio.get_running_loop(), LOGS)
            following = (
                JobFollowing(self._upstream, feed, name)
                if name
                else JobsFollowing(self._upstream, feed)
            )
            self._followed[name] = _Followed(feed, following)
        followed = self._followed[name]
        followed.clients += 1
        try:
            yield followed.feed
        finally:
            followed.clients -= 1
            if not followed.clients:
                del self._followed[name]
                followed.following.close()

    def close(self) -> None:
        """End all streams; from any thread."""
        for followed in list(self._followed.values()):
            followed.feed.close()

    async def act(self, request: Request) -> Response:
        """Run one of ACTS or `film`, with its arguments as a JSON object."""
        act = self._acts.get(request.path_params["act"])
        if act is None:
            raise NotFound(f"there is no act {request.path_params['act']}")
        asked = await _body(request)
        done = await asyncio.to_thread(lambda: act(self._upstream.client(), asked))
        for followed in self._followed.values():
            followed.following.refresh()
        return JSONResponse(done)


def make_application(
    page: Page, key: TokenSource, port: int, hosts: Collection[str] = ()
) -> Starlette:
    """The page of one server, for the browsers that have `key`."""
    routes = [
        Route("/", _index),
        Route("/api/news", page.stream),
        Route("/api/acts/{act}", page.act, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    access = Middleware(Access, key=key, port=port, hosts=hosts, entrance=_entrance)
    return Starlette(
        routes=routes, middleware=[access], exception_handlers={PodracerError: _refuse}
    )


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _entrance(request: Request) -> Response:
    """A page without any data of jobs: a script that exchanges the URL's fragment for the
    cookie."""
    return FileResponse(STATIC / "enter.html", 401)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises InvalidInput for a body that is too long, or not a JSON
    object."""
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_BODY_BYTES:
            raise InvalidInput(f"more than {MAX_BODY_BYTES} bytes", reason="TOO_LARGE")
    try:
        asked = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInput("expected a JSON object") from error
    if not isinstance(asked, dict):
        raise InvalidInput("expected a JSON object")
    return asked


async def _refuse(request: Request, error: Exception) -> Response:
    """The error, in the lines that the command would print."""
    assert isinstance(error, PodracerError), "the handler is registered for these"
    status = next(status for kinds, status in _STATUS if isinstance(error, kinds))
    violations = error.violations if isinstance(error, InvalidInput) else ()
    lines = [str(each) for each in violations if each.message not in error.message]
    return JSONResponse({"message": error.message, "reason": error.reason, "lines": lines}, status)
