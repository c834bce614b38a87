"""Access to the page: only for a browser that has the key and uses one of the page's host names.

A page of another site cannot read or act: the Host is checked against DNS rebinding, the cookie is
SameSite=Strict, and an action needs the page's Origin and a header that a form cannot send."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from podracer_core.rpc.tokens import TokenSource

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
            refusal = _refuse(401, "open the URL that the command printed, or enter its key")
            if request.url.path == "/":
                refusal = await self._entrance(request)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The refusal of another host name, or of an action that another page may have sent."""
        host = request.headers.get("host", "")
        if host not in self._hosts:
            return _refuse(421, "the page does not accept this host name; add it with --host")
        is_link = (
            request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
        )  # in a notebook, a chat
        if (
            request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
            and not is_link
        ):
            return _refuse(403, "refused: the request comes from another site")
        if request.method in ("GET", "HEAD"):
            return None
        origin = request.headers.get("origin", "")
        if origin not in (f"http://{host}", f"https://{host}") or ACT_HEADER not in request.headers:
            return _refuse(403, "refused: only the page itself may send actions")
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
            return _refuse(401, "wrong key for this page")
        response = Response(status_code=204)
        is_https = request.headers["origin"].startswith("https:")
        response.set_cookie(
            self._cookie, self._session(), httponly=True, samesite="strict", secure=is_https
        )
        return response


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"message": message, "lines": []}, status)
