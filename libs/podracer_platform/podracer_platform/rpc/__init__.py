"""Everything between a Podracer process and gRPC; no torch.

limits       every default time-out and size, in one place
address      where a server listens and a client calls; what counts as local
tokens       the secrets: one token file a role, lease tokens, a client's own token
auth         which role may call which method, and the current caller
bounds       what each field of a request may be, by the protos
status       PodracerError <-> google.rpc.Status
guard        the gate of every server: authorization, bounds of requests, the mapping of errors
admission    how a server is shared by its callers
binding      options of a server, and checks before it listens
aio_server   grpc.aio.server: orchestrator, leaderboard, policy server; checks for its readiness
server       the same in a thread: worker, learner, evaluator
health       grpc.health.v1 without a token, also on a port of its own; probe: asks it
interceptors the client interceptors: token, deadline, errors (sync and aio: interceptors_aio)
channel      open_channel and open_aio_channel
backoff      waiting longer after each failure
streams      both ends of a bidirectional stream as queues; sessions: a limited number of them
work_queue   tasks of handlers for the main thread
observation  metrics and spans of calls
tls          certificates on every hop
resource_names   makes and parses `projects/p/jobs/j`
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.rpc import aio_server, audit, auth, limits, probe, resource_names, server
    from podracer_platform.rpc.address import Address, parse_address
    from podracer_platform.rpc.admission import Admission
    from podracer_platform.rpc.aio_server import AioRpcServer, Readiness, create_aio_server
    from podracer_platform.rpc.audit import write_audit_log
    from podracer_platform.rpc.auth import (
        Authorizer, Identity, access_of, bearer, check_projects, current_caller, methods_of, texts,
    )
    from podracer_platform.rpc.backoff import Backoff
    from podracer_platform.rpc.binding import RequestBytes, ServerOptions, prepare_address
    from podracer_platform.rpc.bounds import PAGE_BYTES, check_bounds, page
    from podracer_platform.rpc.channel import (
        ChannelOptions, open_aio_channel, open_channel, service_config,
    )
    from podracer_platform.rpc.guard import Context
    from podracer_platform.rpc.health import CHECK, LIVENESS, Health
    from podracer_platform.rpc.limits import (
        CHUNK_REQUEST_BYTES, MESSAGE_BYTES, REQUEST_BYTES, SERVER_THREADS, SPEC_BYTES,
    )
    from podracer_platform.rpc.probe import health_of, main
    from podracer_platform.rpc.resource_names import (
        DEFAULT_PROJECT, LABEL, Name, artifact_name, check_label, is_label, is_name, job_name,
        last_part, leaderboard_name, lease_name, parse, parse_any, pod_name, wrong_field,
    )
    from podracer_platform.rpc.server import RpcServer, create_server
    from podracer_platform.rpc.sessions import Session, SessionSlots, WorkSession
    from podracer_platform.rpc.shown_tokens import (
        POD_KEYS, ShownTokens, TokensShownHere, public_key,
    )
    from podracer_platform.rpc.signed_tokens import (
        CLOCK_TOLERANCE_S, PUBLIC_KEYS, REVOKED, Claims, SignedTokens, sign,
    )
    from podracer_platform.rpc.status import (
        DETAILS_KEY, DOMAIN, code_of, from_rpc_error, from_status, to_grpc_status, to_status,
        translated_errors,
    )
    from podracer_platform.rpc.streams import Outbox, StreamCall
    from podracer_platform.rpc.tls import CA, CERTIFICATE, KEY, TlsFolder, TlsMaterial, role_name
    from podracer_platform.rpc.tokens import (
        FILE_ROLES, FileToken, LeaseTokens, Role, TokenFiles, TokenSource, create_secret_file,
        create_tokens, hash_token, hash_tokens,
    )
    from podracer_platform.rpc.work_queue import WorkQueue
else:
    __all__, __getattr__ = exports(__name__)
