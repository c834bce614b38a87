"""The page's routes: its files, one stream of updates per client, and actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from podracer_client.names import job_name
from podracer_client.web.access import Access
from podracer_client.web.acts import ACTS
from podracer_client.web.feed import Feed
from podracer_client.web.following import LOGS, JobFollowing, JobsFollowing, Upstream
from podracer_client.web.videos import Videos
from podracer_core.errors import (
    Exhausted,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    Unauthenticated,
    Unavailable,
)
from podracer_core.rpc.tokens import TokenSource

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


class ImpatientProtocol(H11Protocol):
    """HTTP that closes connections on which a request takes too long to arrive: uvicorn has no such
    limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(REQUEST_S, self._look, None)

    def _look(self, former: RequestResponseCycle | None) -> None:
        """Close unless a request has begun since the last look, or one is being answered."""
        if self.cycle is former and (
            former is None or former.more_body or former.response_complete
        ):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(REQUEST_S, self._look, self.cycle)


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
