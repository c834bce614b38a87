"""Everything between a Podracer process and gRPC; no torch.

limits       every default time-out and size, in one place; growing waits
address      where a server listens and a client calls; checks before it listens
tokens       the secrets: token files, lease tokens, signed tokens, those shown to workers
tls          certificates on every hop
auth         which role may call which method, what a request may be, and the current caller
status       PodracerError <-> google.rpc.Status
guard        the gate of every server: authorization, admission, errors, audit log, metrics
server       servers of an event loop, and those in a thread beside the main one; their health
probe        asks for the health of a process
channel      open_channel and open_aio_channel: token, deadline, errors, metrics of each call
streams      both ends of a bidirectional stream as queues, sessions, tasks for the main thread
resource_names   makes and parses `projects/p/jobs/j`
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.rpc import auth, guard, limits, probe, resource_names, server
    from podracer_platform.rpc.address import Address, parse_address, prepare_address
    from podracer_platform.rpc.auth import (
        CHECK, PAGE_BYTES, Authorizer, Identity, access_of, bearer, check_bounds, check_projects,
        current_caller, methods_of, page, texts,
    )
    from podracer_platform.rpc.channel import (
        ChannelOptions, open_aio_channel, open_channel, service_config,
    )
    from podracer_platform.rpc.guard import Admission, Context, write_audit_log
    from podracer_platform.rpc.limits import (
        CHUNK_REQUEST_BYTES, MESSAGE_BYTES, REQUEST_BYTES, SERVER_THREADS, SPEC_BYTES, Backoff,
    )
    from podracer_platform.rpc.probe import health_of, main
    from podracer_platform.rpc.resource_names import (
        DEFAULT_PROJECT, LABEL, Name, artifact_name, check_label, is_label, is_name, job_name,
        last_part, leaderboard_name, lease_name, parse, parse_any, pod_name, wrong_field,
    )
    from podracer_platform.rpc.server import (
        LIVENESS, AioRpcServer, Health, Readiness, RequestBytes, RpcServer, ServerOptions,
        create_aio_server, create_server,
    )
    from podracer_platform.rpc.status import (
        DETAILS_KEY, DOMAIN, code_of, from_rpc_error, from_status, to_grpc_status, to_status,
        translated_errors,
    )
    from podracer_platform.rpc.streams import (
        Outbox, Session, SessionSlots, StreamCall, WorkQueue, WorkSession,
    )
    from podracer_platform.rpc.tls import CA, CERTIFICATE, KEY, TlsFolder, TlsMaterial, role_name
    from podracer_platform.rpc.tokens import (
        CLOCK_TOLERANCE_S, FILE_ROLES, POD_KEYS, PUBLIC_KEYS, REVOKED, Claims, FileToken,
        LeaseTokens, Role, ShownTokens, SignedTokens, TokenFiles, TokenSource, TokensShownHere,
        create_secret_file, create_tokens, hash_token, hash_tokens, public_key, sign,
    )
else:
    __all__, __getattr__ = exports(__name__)
