"""The default time-outs and sizes of every server and channel, and growing waits (Backoff)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest response, and the largest request with tensors."""

CHUNK_REQUEST_BYTES = 2 * 1024 * 1024
"""The largest request that carries a chunk of a file, or what a lease's holder or a control service
has found out."""

REQUEST_BYTES = 256 * 1024
"""The largest request of any other method."""

REQUEST_S = 5.0
"""The time in which the request of a unary method has to arrive."""

SPEC_BYTES = 256 * 1024
"""The largest specification of a job, and the largest description of an environment."""

UNARY_TIMEOUT_S = 10.0
"""The default deadline of unary calls. Long polls set their own; streams have none."""

DRAIN_GRACE_S = 3.0
"""How long running calls may continue once a server drains; Ctrl-C must end everything within 5
s."""

CLIENT_KEEPALIVE_S = 20.0
"""A client with a call in progress pings after this silence…"""

SERVER_KEEPALIVE_S = 30.0
"""…a server after this…"""

KEEPALIVE_TIMEOUT_S = 10.0
"""…and either closes the connection if the answer takes longer than this."""

MINIMUM_PING_INTERVAL_S = 5.0
"""A client that pings more often is disconnected; well under CLIENT_KEEPALIVE_S."""

HANDSHAKE_S = 10.0
"""A connection that has not begun to speak HTTP/2 within this time is closed."""

SERVER_THREADS = 32
"""The most concurrent calls of a pod's server, each of which may hold a thread; one more gets
RESOURCE_EXHAUSTED."""

AIO_CONCURRENT_CALLS = 8192
"""The most concurrent calls of an asyncio server, including long polls of thousands of pods and
watchers; one more gets RESOURCE_EXHAUSTED."""

PLACES = 16
"""The most unary calls of a client's token that a server works on at once; further ones wait."""

LARGE_BYTES = 16 * 1024
"""From this size on, requests of clients are worked on one at a time."""

LEASE_CALLS = 32
"""The most concurrent calls of a lease's holder."""

TOKEN_BYTES = 128 * 1024 * 1024
"""The most bytes of requests that a client's token has in flight."""

CONNECTION_AGE_S = 1800.0, 600.0
"""The age at which a connection to a control service takes no new calls, and how long its open
streams have then."""

CONTROL_STREAMS = 256
"""CONNECTION_STREAMS of a control service."""

CONNECTION_STREAMS = 4096
"""The most concurrent calls of a connection. gRPC resets further ones, rather than letting them
wait: no client is to come near."""

SPARE_CALLS = 4
"""Further threads of a pod's server, for sessions that begin or end."""

PENDING_CALLS = 8192
"""Calls that have arrived and that the server's Python code has not accepted yet. At its default of
1,000 gRPC cancels some: a caller cannot tell this from its own cancellation, and is not told to
retry."""

OVERLOADED_RETRY_S = (0.5, 2.0)
"""A full server tells each caller to wait a random time between these."""

RETRY_ATTEMPTS = 4
"""Attempts of an idempotent call that meets UNAVAILABLE, the first included (gRPC allows 5 at
most)."""

RETRY_INITIAL_S = 0.2
RETRY_MAXIMUM_S = 2.0

RECONNECT_INITIAL_S = 0.1
RECONNECT_MAXIMUM_S = 2.0
"""Back-off between two attempts to connect: a restarted peer is found again within about this
time."""

CONNECT_TIMEOUT_S = 5.0
"""How long one attempt to connect may take: a peer that has just started on a busy machine answers
late."""

STATUS_MESSAGE_CHARACTERS = 1000
STATUS_METADATA_CHARACTERS = 200
STATUS_VIOLATIONS_BYTES = 2000
STATUS_TRACEBACK_BYTES = 3000
"""The most bytes of an error in a status: gRPC clients refuse trailers of more than 8 KiB by
default."""


class Backoff(Iterator[float]):
    """Seconds to wait before each next attempt: `ceiling * (1 - jitter + jitter * u)`, u uniform in
    [0, 1).

    The ceiling starts at `initial_s` and doubles up to `maximum_s`. With `jitter` 1 ("full jitter")
    many clients that failed together do not come back together. The iterator ends after `attempts`
    values (never when None)."""

    def __init__(
        self,
        initial_s: float,
        maximum_s: float,
        jitter: float = 1.0,
        *,
        attempts: int | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        if not 0.0 < initial_s <= maximum_s or not 0.0 <= jitter <= 1.0:
            raise ValueError(
                f"expected 0 < initial_s <= maximum_s, 0 <= jitter <= 1: {initial_s=} {maximum_s=} "
                f"{jitter=}"
            )
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._jitter = jitter
        self._attempts = attempts
        self._uniform = uniform
        self.reset()

    def reset(self) -> None:
        """Start again from `initial_s`, after a success."""
        self._ceiling_s = self._initial_s
        self._left = self._attempts

    def __next__(self) -> float:
        if self._left is not None:
            if self._left <= 0:
                raise StopIteration
            self._left -= 1
        ceiling_s = self._ceiling_s
        self._ceiling_s = min(2.0 * ceiling_s, self._maximum_s)
        return ceiling_s * (1.0 - self._jitter + self._jitter * self._uniform())
