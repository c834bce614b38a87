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
