"""The default time-outs and sizes of every server and channel."""

MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message that either side sends or accepts."""

SPEC_BYTES = 256 * 1024
"""The largest specification of a job, and the largest description of an environment."""

UNARY_TIMEOUT_S = 10.0
"""The default deadline of unary calls. Long polls set their own; streams have none."""

DRAIN_GRACE_S = 3.0
"""How long running calls may continue once a server drains; Ctrl-C must end everything within 5 s."""

CLIENT_KEEPALIVE_S = 20.0
"""A client with a call in progress pings after this silence…"""

SERVER_KEEPALIVE_S = 30.0
"""…a server after this…"""

KEEPALIVE_TIMEOUT_S = 10.0
"""…and either closes the connection if the answer takes longer than this."""

MINIMUM_PING_INTERVAL_S = 5.0
"""A client that pings more often is disconnected; well under CLIENT_KEEPALIVE_S."""

SERVER_THREADS = 32
"""The most concurrent calls of a server of threads (a stream holds its thread); one more gets RESOURCE_EXHAUSTED."""

AIO_CONCURRENT_CALLS = 8192
"""The most concurrent calls of an asyncio server, including long polls of thousands of pods and watchers; one more gets
RESOURCE_EXHAUSTED."""

SPARE_CALLS = 4
"""Further calls that a full server accepts, to refuse them with a time to wait, and to answer health checks. Beyond
these gRPC itself refuses, without a hint."""

PENDING_CALLS = 8192
"""Calls that have arrived and that the server's Python code has not accepted yet. At its default of 1,000 gRPC cancels
some: a caller cannot tell this from its own cancellation, and is not told to retry."""

OVERLOADED_RETRY_S = (0.5, 2.0)
"""A full server tells each caller to wait a random time between these."""

RETRY_ATTEMPTS = 4
"""Attempts of an idempotent call that meets UNAVAILABLE, the first included (gRPC allows 5 at most)."""

RETRY_INITIAL_S = 0.2
RETRY_MAXIMUM_S = 2.0

RECONNECT_INITIAL_S = 0.1
RECONNECT_MAXIMUM_S = 2.0
"""Back-off between two attempts to connect: a restarted peer is found again within about this time."""

CONNECT_TIMEOUT_S = 5.0
"""How long one attempt to connect may take: a peer that has just started on a busy machine answers late."""

STATUS_MESSAGE_CHARACTERS = 1000
STATUS_METADATA_CHARACTERS = 200
STATUS_VIOLATIONS_BYTES = 2000
STATUS_TRACEBACK_BYTES = 3000
"""The most bytes of an error in a status: gRPC clients refuse trailers of more than 8 KiB by default."""
