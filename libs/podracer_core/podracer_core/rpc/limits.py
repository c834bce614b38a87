"""The default time-outs and sizes of every server and channel."""

MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message that either side sends or takes."""

UNARY_TIMEOUT_S = 10.0
"""Deadline of a unary call whose caller gave none. Long polls give their own; streams have none."""

DRAIN_GRACE_S = 3.0
"""How long running calls may still take once a server drains; Ctrl-C must end everything within 5 s."""

CLIENT_KEEPALIVE_S = 20.0
"""A client with a call in progress pings after so much silence…"""

SERVER_KEEPALIVE_S = 30.0
"""…a server after so much…"""

KEEPALIVE_TIMEOUT_S = 10.0
"""…and either gives the connection up when the answer takes longer than this."""

MINIMUM_PING_INTERVAL_S = 5.0
"""A client that pings more often is told to go away; well under CLIENT_KEEPALIVE_S."""

SERVER_THREADS = 32
"""Calls at once in a server of threads (a stream holds its thread); one more is RESOURCE_EXHAUSTED."""

AIO_CONCURRENT_CALLS = 8192
"""Calls at once in an asyncio server, a long poll of each of thousands of pods and watchers included; one more is
RESOURCE_EXHAUSTED."""

SPARE_CALLS = 4
"""Calls that a full server still has room for: it tells them so, and how long to wait, and answers health checks.
Beyond these gRPC itself refuses, without a hint."""

PENDING_CALLS = 8192
"""Calls that have come and that the server's Python has not taken yet. gRPC's own limit is 1,000, from which on it
cancels some: a caller cannot tell that from his own cancelling, and is not told to come again."""

OVERLOADED_RETRY_S = (0.5, 2.0)
"""A full server sends each caller away for a time of its own between these."""

RETRY_ATTEMPTS = 4
"""Attempts of an idempotent call that meets UNAVAILABLE, the first included (gRPC allows 5 at most)."""

RETRY_INITIAL_S = 0.2
RETRY_MAXIMUM_S = 2.0

RECONNECT_INITIAL_S = 0.1
RECONNECT_MAXIMUM_S = 2.0
"""Back-off between two attempts to connect: a restarted peer is found again within about this time."""

CONNECT_TIMEOUT_S = 5.0
"""How long one attempt to connect may take: a peer that has just started, on a busy machine, greets late."""

STATUS_MESSAGE_CHARACTERS = 1000
STATUS_METADATA_CHARACTERS = 200
STATUS_VIOLATIONS_BYTES = 2000
STATUS_TRACEBACK_BYTES = 3000
"""What of an error travels in a status: gRPC clients refuse trailers of more than 8 KiB by default."""
