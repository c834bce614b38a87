"""Entering the live page as its own script does."""

from __future__ import annotations

from typing import Any


def enter(session: Any, origin: str, key: str, name: str = "") -> int:
    """Have a session exchange the key for the cookie, under another name (host:port) than the
    origin's; the status."""
    if name:
        session.headers["host"] = name
    headers = {
        "authorization": f"Bearer {key}",
        "origin": f"http://{name}" if name else origin,
        "x-podracer-web": "1",
    }
    return int(session.post(f"{origin}/api/session", headers=headers, timeout=60).status_code)


def is_live(session: Any, origin: str) -> bool:
    """Whether the page that was entered has heard of the orchestrator."""
    with session.get(f"{origin}/api/news", stream=True, timeout=60) as news:
        return any(b'"state":"live"' in line for line in news.iter_lines())
