"""The policy server: its process, one asyncio loop with the server and threads for long operations;
its rpc methods; observations, actions and policies as messages, every value checked."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import torch
from torch import Tensor

from podracer.common.v1 import cohort_pb2, tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer.policy.v1.policy_service_pb2_grpc import (
    PolicyServiceServicer,
    add_PolicyServiceServicer_to_server,
)
from podracer_core.catalogue import WHOLE, flat_rows, parts_of
from podracer_core.config import Seconds
from podracer_core.errors import InvalidInput, PermissionRefused, PodracerError, PreconditionFailed
from podracer_platform.carriers import decode_tensor, encode_tensor
from podracer_platform.messages import space_to_message
from podracer_platform.rpc import (
    MESSAGE_BYTES,
    AioRpcServer,
    Authorizer,
    Context,
    FileToken,
    RequestBytes,
    Role,
    TokenFiles,
    create_aio_server,
    current_caller,
    limits,
    methods_of,
    open_channel,
)
from podracer_platform.service import ServiceSettings, announce
from podracer_platform.telemetry import POLICY_LOADS
from podracer_policy.policies import Batcher, ServedPolicies, ServedPolicy, require_word
from podracer_policy.sources import Alias, Follower, parse_sources, received_policy

_PLACES = 1024
"""Of a token: requests to act wait together for one call of the network."""

_TURN_S = 0.0001
"""How long another thread may run in Python while the loop waits: one loads a policy, and each of
the twenty operations of a small network waits for it anew."""


@dataclass(frozen=True)
class PolicyConfig(ServiceSettings):
    """
    policies         what to serve from the start, each NAME=SOURCE: a checkpoint's folder, or
                     projects/p/jobs/j@alias, which is followed. Folders of one name act together,
                     the best first. Empty: LoadPolicy brings them
    rule             how those act together, mean or vote; empty: by action space
    orchestrator     address of the server with the checkpoints of followed aliases
    leaderboard      address of the server with the followed aliases
    client_token     file with the token to show to these two; unset: the file `client` in the
                     folder of tokens
    follow_interval  how often to check where an alias points
    """

    policies: tuple[str, ...] = ()
    rule: str = ""
    orchestrator: str = ""
    leaderboard: str = ""
    client_token: Path | None = None
    follow_interval: Seconds = 5.0


async def create_policy_server(
    config: PolicyConfig, policies: ServedPolicies, batcher: Batcher
) -> AioRpcServer:
    """A bound server of what is served."""
    service = PolicyService(policies, batcher)
    acts: RequestBytes = dict.fromkeys(
        (f"{SERVICE}/Act", f"{SERVICE}/ActStream"), partial(most_bytes, policies)
    )
    server = await create_aio_server(
        config.listen,
        [partial(add_PolicyServiceServicer_to_server, service)],
        Authorizer(methods_of("policy"), TokenFiles(config.tokens)),
        replace(
            config.server_options(), request_bytes=acts, places=_PLACES, large_bytes=MESSAGE_BYTES
        ),
    )
    server.on_drain(service.drain)
    return server


def serve(config: PolicyConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    # of small networks more threads only wait for one another
    torch.set_num_threads(config.threads or 1)
    sys.setswitchinterval(_TURN_S)
    asyncio.run(_serve(config))
    return 0


async def _serve(config: PolicyConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folders, aliases = parse_sources(config.policies)
    policies, batcher = ServedPolicies(), Batcher()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(batcher.close)
        followers = _followers(config, aliases, policies, stack)
        server = await create_policy_server(config, policies, batcher)
        for named in folders:
            policies.put(await asyncio.to_thread(named.load, config.rule))
        warm = [_repeat(follower.check, config.follow_interval, stop) for follower in followers]
        if not all(await asyncio.gather(*warm)):
            await server.drain(0)
            return
        gc.collect()
        # what stays is looked through never again: that would take longer than most answers
        gc.freeze()
        async with server:
            following = [
                asyncio.create_task(follower.run(config.follow_interval)) for follower in followers
            ]
            announce(server.address)
            await stop.wait()
            for task in following:
                task.cancel()


async def _repeat(
    look: Callable[[], Awaitable[bool]], interval_s: float, stop: asyncio.Event
) -> bool:
    """Repeat until it succeeds; False if `stop` is set before. The server is not ready until
    then."""
    while not stop.is_set():
        if await look():
            return True
        try:
            await asyncio.wait_for(stop.wait(), interval_s)
        except TimeoutError:
            continue
    return False


def _followers(
    config: PolicyConfig, aliases: list[Alias], policies: ServedPolicies, stack: AsyncExitStack
) -> list[Follower]:
    """The followers of aliases. Raises InvalidInput if their servers' addresses are unset."""
    if not aliases:
        return []
    for field, value in (
        ("PODRACER_LEADERBOARD", config.leaderboard),
        ("PODRACER_ORCHESTRATOR", config.orchestrator),
    ):
        if not value:
            raise InvalidInput.of(
                field, f"is not set; expected its address, to follow {aliases[0].source}"
            )
    token = FileToken(config.client_token or config.tokens / Role.CLIENT)

    def opened(address: str, server: str) -> grpc.Channel:
        return stack.enter_context(open_channel(address, token, config.channel_options(server)))

    leaderboard = opened(config.leaderboard, "leaderboard")
    orchestrator = opened(config.orchestrator, "orchestrator")
    return [Follower(alias, policies, leaderboard, orchestrator) for alias in aliases]


SERVICE = "/podracer.policy.v1.PolicyService"


_IN_FLIGHT = 64
"""Requests of one stream that are not answered yet; further ones are not read."""


class PolicyService(PolicyServiceServicer):
    """Asynchronous; long operations (calls of large networks, loading) run in threads."""

    def __init__(self, policies: ServedPolicies, batcher: Batcher) -> None:
        self._policies, self._batcher = policies, batcher
        self._readers: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    async def drain(self) -> None:
        """Let every stream read no further; requests that were read are answered."""
        for reader in self._readers:
            reader.cancel()

    async def Act(self, request: pb.ActRequest, context: Context) -> pb.ActResponse:
        return await self._act(request, context.time_remaining())

    async def ActStream(
        self, request_iterator: AsyncIterator[pb.ActStreamRequest], context: Context
    ) -> AsyncIterator[pb.ActStreamResponse]:
        answers: asyncio.Queue[asyncio.Task[pb.ActStreamResponse] | None] = asyncio.Queue()
        room = asyncio.Semaphore(_IN_FLIGHT)
        drained = False

        async def read() -> None:
            nonlocal drained
            try:
                async for request in request_iterator:
                    await room.acquire()
                    answers.put_nowait(asyncio.create_task(self._answer(request)))
            except asyncio.CancelledError:
                drained = True
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                room.release()
            if drained:
                yield pb.ActStreamResponse(draining=True)
            await reader
        finally:
            self._readers.discard(reader)
            reader.cancel()
            while not answers.empty():
                if (left := answers.get_nowait()) is not None:
                    left.cancel()

    async def ListPolicies(
        self, request: pb.ListPoliciesRequest, context: Context
    ) -> pb.ListPoliciesResponse:
        found = [policy for policy in self._policies.present() if _is_for_caller(policy)]
        return pb.ListPoliciesResponse(
            policies=[policy_message(policy, self._policies) for policy in found]
        )

    async def GetPolicy(
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        return pb.GetPolicyResponse(policy=policy_message(self._find(request.name), self._policies))

    async def LoadPolicy(
        self, request_iterator: AsyncIterator[pb.LoadPolicyRequest], context: Context
    ) -> pb.LoadPolicyResponse:
        async with self._loading:
            try:
                policy = await received_policy(request_iterator)
                _require_own(policy)
                policy = self._policies.put(policy)
            except PodracerError:
                POLICY_LOADS.add(result="failed")
                raise
        POLICY_LOADS.add(result="done")
        return pb.LoadPolicyResponse(policy=policy_message(policy, self._policies))

    async def UnloadPolicy(
        self, request: pb.UnloadPolicyRequest, context: Context
    ) -> pb.UnloadPolicyResponse:
        require_word("name", request.name)
        self._find(request.name)
        self._policies.remove(request.name)
        return pb.UnloadPolicyResponse()

    async def _act(self, request: pb.ActRequest, remaining_s: float | None) -> pb.ActResponse:
        deadline = None if remaining_s is None else time.monotonic() + remaining_s
        policy = self._find(request.policy, request.version)
        observations, alone = observations_of(request, policy)
        masks = masks_of(request, policy, len(observations))
        actions = await self._batcher.act(policy, observations, masks, deadline)
        return response_of(actions, request, policy, alone=alone)

    async def _answer(self, request: pb.ActStreamRequest) -> pb.ActStreamResponse:
        try:
            return pb.ActStreamResponse(
                request_id=request.request_id, act=await self._act(request.act, None)
            )
        except PodracerError as error:
            problem = cohort_pb2.Problem(reason=error.reason, message=error.message)
            return pb.ActStreamResponse(request_id=request.request_id, problem=problem)

    def _find(self, name: str, version: str = "") -> ServedPolicy:
        policy = self._policies.find(name, version, _is_for_caller)
        _require_own(policy)
        return policy


def _is_for_caller(policy: ServedPolicy) -> bool:
    """Whether the caller's token is for the projects that its agents are of."""
    projects = current_caller().projects
    return projects is None or policy.projects <= projects


def _require_own(policy: ServedPolicy) -> None:
    if not _is_for_caller(policy):
        message = f"the policy {policy.name} is of a project that this token is not for"
        raise PermissionRefused(message, reason="OTHER_PROJECT")


MAX_ROWS = 1024
"""The most observations of one request."""

_CONVERTED = {torch.float32: (torch.float64,), torch.float64: (torch.int64,)}


_PART = {"observations": "observation", "action_masks": "mask"}


def most_bytes(policies: ServedPolicies) -> int:
    """The largest request to act: MAX_ROWS of the largest observation, as doubles, with their
    masks."""
    rows = [
        8 * math.prod(policy.observation_shape) + sum(policy.mask_parts)
        for policy in policies.present()
    ]
    return min(MAX_ROWS * max(rows, default=0) + limits.REQUEST_BYTES, limits.MESSAGE_BYTES)


def observations_of(request: pb.ActRequest, policy: ServedPolicy) -> tuple[Tensor, bool]:
    """The observations for the policy, [B, *obs], and whether it is one without an axis for the
    batch. Raises InvalidInput with the field, the expected and the found."""
    parts = parts_of(policy.original_space)
    given = request.HasField("observations") + bool(request.values) + bool(request.parts)
    if given > 1 or (not given and parts):
        raise _refused("observations", "expected exactly one of observations, values and parts")
    if request.values:
        return _from_values(request, policy), False
    if not request.HasField("observations"):
        return _from_parts(
            {name: _decoded(f"parts.{name}", value) for name, value in request.parts.items()},
            policy,
        )
    observations = _decoded("observations", request.observations)
    shape = tuple(request.observations.shape)
    if [part.name for part in parts] == [WHOLE] and shape == parts[
        0
    ].shape != policy.observation_shape:
        return _from_parts({WHOLE: observations}, policy)
    if observations.dtype in _CONVERTED.get(policy.observation_dtype, ()):
        _require_finite(observations)
        observations = observations.to(policy.observation_dtype)
    if observations.dtype != policy.observation_dtype:
        expected, found = _dtype_name(policy.observation_dtype), _dtype_name(observations.dtype)
        raise _refused("observations.dtype", f"expected {expected}, got {found}")
    observations = _rows("observations", observations, policy.observation_shape)
    _require_finite(observations)
    return observations, shape == policy.observation_shape


def masks_of(request: pb.ActRequest, policy: ServedPolicy, rows: int) -> Tensor | None:
    """The masks, [B, n] bool; None if the request has none. Raises InvalidInput as
    `observations_of`."""
    if not request.HasField("action_masks"):
        return None
    if not policy.mask_parts:
        raise _refused("action_masks", "this policy's actions know no masks; expected none")
    masks = _decoded("action_masks", request.action_masks)
    if masks.dtype != torch.bool:
        raise _refused("action_masks.dtype", f"expected BOOL, got {_dtype_name(masks.dtype)}")
    masks = _rows("action_masks", masks, (sum(policy.mask_parts),))
    if len(masks) != rows:
        raise _refused(
            "action_masks.shape",
            f"expected one mask for each of {rows} observations, got {len(masks)}",
        )
    for place, part in enumerate(masks.split_with_sizes(list(policy.mask_parts), 1)):
        empty = (~part.any(1)).nonzero()
        if len(empty):
            where = f"place {place} of mask {int(empty[0])}"
            raise _refused("action_masks", f"{where} allows nothing; expected one choice at least")
    return masks


def response_of(
    actions: Tensor, request: pb.ActRequest, policy: ServedPolicy, *, alone: bool
) -> pb.ActResponse:
    """actions [B, *action]; those of one observation `alone` lose their first axis. Raises
    PreconditionFailed (BAD_ACTION) if one is not finite."""
    if actions.is_floating_point() and not bool(torch.isfinite(actions).all()):
        row = int((~torch.isfinite(actions).flatten(1).all(1)).nonzero()[0])
        message = (
            f"policy {policy.name}: its action for observation {row} is "
            f"{actions[row].tolist()}, expected finite"
        )
        raise PreconditionFailed(f"{message} numbers; its weights are useless", reason="BAD_ACTION")
    shaped = encode_tensor(actions[0] if alone else actions)
    response = pb.ActResponse(actions=shaped, policy=policy.name, version=policy.version)
    if request.values:
        response.values.extend(actions.flatten().tolist())
    return response


def policy_message(policy: ServedPolicy, policies: ServedPolicies) -> pb.Policy:
    """The description of a policy, and its versions."""
    message = pb.Policy(
        name=policy.name,
        version=policy.version,
        versions=policies.versions(policy.name),
        source=policy.source,
        agents=policy.agents,
        ensemble=policy.rule,
        observation_space=space_to_message(policy.observation_space),
        action_space=space_to_message(policy.action_space),
        request_count=policy.request_count,
        original_observation_space=space_to_message(policy.original_space),
    )
    for part in parts_of(policy.original_space):
        message.parts.add(
            name=part.name, space=space_to_message(part.space), offset=part.offset, size=part.size
        )
    message.load_time.FromNanoseconds(int(policy.load_time * 1e9))
    return message


def _from_parts(parts: Mapping[str, Tensor], policy: ServedPolicy) -> tuple[Tensor, bool]:
    for part in parts_of(policy.original_space):
        value = parts.get(part.name)
        if value is not None and value.dim() > len(part.shape) and not 1 <= len(value) <= MAX_ROWS:
            raise _refused(f"parts.{part.name}", f"expected 1 to {MAX_ROWS} rows, got {len(value)}")
    try:
        rows, alone = flat_rows(
            policy.original_space, {name: tensor.numpy() for name, tensor in parts.items()}
        )
    except InvalidInput as error:
        raise _refused("parts", error.message) from error
    observations = (
        torch.from_numpy(rows).to(policy.observation_dtype).view(-1, *policy.observation_shape)
    )
    _require_finite(observations, "parts")
    return observations, alone


def _from_values(request: pb.ActRequest, policy: ServedPolicy) -> Tensor:
    size = math.prod(policy.observation_shape)
    rows, left = divmod(len(request.values), size)
    if left or rows > MAX_ROWS:
        expected = f"expected {size} numbers for each of 1 to {MAX_ROWS} observations"
        raise _refused("values", f"{expected}, got {len(request.values)} numbers")
    values = torch.tensor(list(request.values), dtype=torch.float64).view(
        rows, *policy.observation_shape
    )
    _require_finite(values, "values")
    if policy.observation_dtype == torch.uint8 and not torch.equal(
        values.clamp(0, 255).round(), values
    ):
        raise _refused("values", "expected whole numbers from 0 to 255: the policy sees images")
    observations = values.to(policy.observation_dtype)
    _require_finite(observations, "values")
    return observations


def _decoded(field: str, message: tensor_pb2.Tensor) -> Tensor:
    try:
        return decode_tensor(message)
    except InvalidInput as error:
        raise _refused(field, error.message) from error


def _rows(field: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A batch: the tensor itself, or one row alone as a batch of one."""
    if tuple(tensor.shape) == shape:
        return tensor.unsqueeze(0)
    if tensor.dim() != len(shape) + 1 or tuple(tensor.shape[1:]) != shape:
        wanted = ", ".join(("B", *map(str, shape)))
        raise _refused(
            f"{field}.shape",
            f"expected [{wanted}], or {list(shape)} for one {_PART[field]}, got "
            f"{list(tensor.shape)}",
        )
    if not 1 <= len(tensor) <= MAX_ROWS:
        raise _refused(f"{field}.shape", f"expected 1 to {MAX_ROWS} rows, got {len(tensor)}")
    return tensor


def _require_finite(observations: Tensor, field: str = "observations") -> None:
    if observations.is_floating_point() and not np.isfinite(observations.numpy()).all():
        place = (~torch.isfinite(observations)).nonzero()[0].tolist()
        found = float(observations[tuple(place)])
        raise _refused(field, f"expected finite numbers, got {found:g} at {place}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").upper()


def _refused(field: str, problem: str) -> InvalidInput:
    return InvalidInput.of(field, problem, reason="BAD_OBSERVATION")
