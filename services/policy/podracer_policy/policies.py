"""Policies that act for others, by name and version, and the batches of their requests.

Requests that wait at the same time share one call of the network. No request waits for a batch to
fill: a single request is answered at once. Short calls, as for most policies and one observation,
run in the event loop, as a thread would take longer to be notified; all requests that have arrived
by then are one batch. Long calls run in a thread, and meanwhile the next batch gathers."""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podracer_core.catalogue import Space
from podracer_core.checkpoint import (
    Checkpoint,
    array_spaces,
    load_ensemble,
    load_ensemble_policy,
    load_policy,
    observation_origin,
    original_space,
    pack_policy,
    random_observations,
    rule_of,
)
from podracer_core.environments import action_mask_parts, from_gymnasium
from podracer_core.errors import (
    AlreadyExists,
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    NotFound,
    Unavailable,
)
from podracer_platform.telemetry import POLICY_ACTIONS, POLICY_BATCH, POLICY_QUEUE

MAX_POLICIES = 100
"""Most policies that act together."""

_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")
_WARM_ROWS = (1, 8)
_WARM_CALLS = 3
_AGENT = re.compile(r"projects/([^/]+)/.*")


class ServedPolicy:
    """A greedy policy, or several that act as one, with normalization inside; it has acted before
    it is ready.

    For the same batch it acts exactly as `load_policy` and `load_ensemble_policy` do. In a batch of
    another size actions in a box differ by rounding, and of two choices that are equally good but
    for rounding either may be taken.

    name, version       by which it is asked for
    source              where it came from, for people
    agents              names, the best first
    rule                how several act together; "" for one
    observation_space   what it takes, a box; float32, uint8 for images, float64 with an origin
    original_space      of the environment's observations, before they become a flat row
    mask_parts          flags in a mask of its actions, for each place of an action; empty where it
                        knows no masks
    load_time           seconds since the epoch
    request_count       requests answered; the batcher adds to it
    """

    def __init__(
        self,
        name: str,
        version: str,
        checkpoints: Sequence[Checkpoint],
        rule: str = "",
        source: str = "",
    ) -> None:
        """`checkpoints`: the best first. Raises InvalidInput for what cannot act, or not
        together."""
        require_word("name", name)
        require_word("version", version)
        if not 1 <= len(checkpoints) <= MAX_POLICIES:
            raise InvalidInput(f"checkpoints: expected 1 to {MAX_POLICIES}, got {len(checkpoints)}")
        self.name, self.version, self.source = name, version, source
        self.agents = [str(checkpoint.metadata.get("agent", "")) for checkpoint in checkpoints]
        # Of no project (""): for no token of a project.
        self.projects = frozenset(
            match[1] if match else "" for match in map(_AGENT.fullmatch, self.agents)
        )
        self.digest = digest_of(checkpoints)
        chosen = rule_of(checkpoints, rule)
        self.rule = chosen if len(checkpoints) > 1 else ""
        self._policy = (
            load_ensemble_policy(checkpoints, rule)
            if len(checkpoints) > 1
            else load_policy(checkpoints[0])
        )
        observations, actions = array_spaces(checkpoints[0])
        self.observation_shape: tuple[int, ...] = tuple(observations.shape)
        self.observation_dtype = random_observations(checkpoints[0], 1).dtype
        self.mask_parts = tuple(action_mask_parts(actions))
        # A policy by itself knows no masks, an actor does.
        self._masked = load_ensemble(checkpoints, rule) if self.mask_parts else None
        self.original_space = original_space(checkpoints[0])
        self._origin = observation_origin(checkpoints[0])
        dtype = str(self.observation_dtype).removeprefix("torch.")
        self.observation_space: Space = replace(from_gymnasium(observations), dtype=dtype)  # type: ignore[arg-type]  # a box
        self.action_space: Space = from_gymnasium(actions)
        self._seconds_alone, self._seconds_a_row = 0.0, 0.0
        self._warm(checkpoints[0])
        self.load_time = time.time()
        self.request_count = 0

    def seconds_for(self, rows: int) -> float:
        """About how long `act` takes, as it did when this policy was made; rather more than
        less."""
        return self._seconds_alone + rows * self._seconds_a_row

    def act(self, observations: Tensor, masks: Tensor | None = None) -> Tensor:
        """observations [B, *obs] raw, masks [B, sum(mask_parts)] bool (the allowed ones) -> greedy
        actions [B, *action] in the environment's units."""
        with torch.inference_mode():
            if masks is None or self._masked is None:
                actions: Tensor = self._policy(observations)
                return actions
            if observations.dtype == torch.float64:
                observations = (observations - self._origin).float()
            return self._masked.greedy(observations.unsqueeze(0), masks.unsqueeze(0))[0]

    def _warm(self, checkpoint: Checkpoint) -> None:
        """Act a few times: the first takes long. Raises InvalidInput for numbers that are not
        finite."""
        seconds = []
        for rows in _WARM_ROWS:
            observations = random_observations(checkpoint, rows)
            if not torch.isfinite(self.act(observations).double()).all():
                message = f"{self.name} {self.version} acts with numbers that are not finite"
                raise InvalidInput(message, reason="NOT_FINITE")
            seconds.append(min(self._timed(observations) for _ in range(_WARM_CALLS)))
        self._seconds_alone, self._seconds_a_row = seconds[0], seconds[-1] / _WARM_ROWS[-1]

    def _timed(self, observations: Tensor) -> float:
        began = time.perf_counter()
        self.act(observations)
        return time.perf_counter() - began


def require_word(field: str, value: str) -> None:
    """Raises InvalidInput unless `value` may name a policy or a version."""
    if not _WORD.fullmatch(value):
        raise InvalidInput.of(
            field, f"expected 1 to 100 letters, digits, '.', '-' and '_', got {value[:110]!r}"
        )


def digest_of(checkpoints: Sequence[Checkpoint]) -> str:
    """SHA-256 of what acts."""
    digest = hashlib.sha256()
    for checkpoint in checkpoints:
        digest.update(hashlib.sha256(pack_policy(checkpoint)).digest())
    return digest.hexdigest()


MAX_BATCH = 256
"""The most observations in one call; a larger request is its own call."""

MAX_WAITING = 4096
"""The most waiting observations; further requests are refused."""

_SHORT_S = 0.002


@dataclass(slots=True)
class _Request:
    policy: ServedPolicy
    observations: Tensor
    masks: Tensor | None
    deadline: float | None
    answer: asyncio.Future[Tensor]
    rows: int

    def joins(self, other: _Request) -> bool:
        return self.policy is other.policy and (self.masks is None) == (other.masks is None)


class Batcher:
    """`act` answers a request with its policy; `close` ends the batcher.

    It belongs to one event loop, which makes and calls it.
    """

    def __init__(self, max_batch: int = MAX_BATCH, max_waiting: int = MAX_WAITING) -> None:
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._short, self._long = deque[_Request](), deque[_Request]()
        self._rows = 0
        self._is_told = False
        self._acting: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "acting")
        self._closed = False

    async def act(
        self,
        policy: ServedPolicy,
        observations: Tensor,
        masks: Tensor | None = None,
        deadline: float | None = None,
    ) -> Tensor:
        """observations [B, *obs], masks [B, n] -> actions [B, *action].

        `deadline` of time.monotonic(): a request that is not begun by then fails with
        DeadlineExpired; a cancelled one is dropped. Raises Exhausted where too many wait,
        Unavailable after `close`, and what the policy raises."""
        if self._closed:
            raise Unavailable("the policy server is stopping")
        rows = observations.shape[0]
        if self._rows and self._rows + rows > self._max_waiting:
            raise Exhausted(
                f"{self._rows} observations wait already, of {self._max_waiting} at most",
                reason="QUEUE_FULL",
            )
        loop = asyncio.get_running_loop()
        request = _Request(policy, observations, masks, deadline, loop.create_future(), rows)
        self._rows += rows
        if policy.seconds_for(rows) <= _SHORT_S:
            self._short.append(request)
            if not self._is_told:
                self._is_told = True
                loop.call_soon(self._act_short)
        else:
            self._long.append(request)
            if self._acting is None:
                self._acting = loop.create_task(self._act_long())
        return await request.answer

    async def close(self) -> None:
        """Answer waiting requests, then end the thread."""
        self._closed = True
        self._act_short()
        if self._acting is not None:
            await self._acting
        self._thread.shutdown()

    def _act_short(self) -> None:
        self._is_told = False
        while self._short:
            if batch := self._take(self._short):
                _settle(batch, _act(batch))

    async def _act_long(self) -> None:
        while self._long:
            if batch := self._take(self._long):
                _settle(
                    batch,
                    await asyncio.get_running_loop().run_in_executor(self._thread, _act, batch),
                )
        self._acting = None

    def _take(self, queue: deque[_Request]) -> list[_Request]:
        """The oldest request and those that fit in its batch, without cancelled and expired
        ones."""
        first = queue.popleft()
        batch, rows, others = [first], first.rows, deque[_Request]()
        while queue and rows < self._max_batch:
            request = queue.popleft()
            if request.joins(first) and rows + request.rows <= self._max_batch:
                batch.append(request)
                rows += request.rows
            else:
                others.append(request)
        queue.extendleft(reversed(others))
        self._rows -= rows
        POLICY_QUEUE.set(self._rows)
        now = time.monotonic()
        return [request for request in batch if _is_wanted(request, now)]


def _is_wanted(request: _Request, now: float) -> bool:
    if request.answer.cancelled():
        return False
    if request.deadline is None or request.deadline > now:
        return True
    request.answer.set_exception(DeadlineExpired("the deadline passed before the policy could act"))
    return False


def _act(requests: Sequence[_Request]) -> Tensor | Exception:
    """The actions for requests of one policy, or the error."""
    first = requests[0]
    observations, masks = first.observations, first.masks
    try:
        if len(requests) > 1:
            observations = torch.cat([request.observations for request in requests])
            if masks is not None:
                masks = torch.cat(
                    [request.masks for request in requests if request.masks is not None]
                )
        with POLICY_BATCH.timed():
            return first.policy.act(observations, masks)
    except Exception as error:  # noqa: BLE001 - every waiting request gets it
        return error


def _settle(requests: Sequence[_Request], outcome: Tensor | Exception) -> None:
    """Answer each request that still waits."""
    if isinstance(outcome, Exception):
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(outcome)
        return
    POLICY_ACTIONS.add(len(outcome))
    requests[0].policy.request_count += len(requests)
    parts = outcome.split_with_sizes([request.rows for request in requests])
    for request, part in zip(requests, parts, strict=True):
        if not request.answer.done():
            request.answer.set_result(part)


MAX_NAMES = 64
VERSIONS_KEPT = 2
"""The versions kept of each name: the current and the previous one."""


class ServedPolicies:
    """The policies by name. Any thread may use it. A policy that is removed still serves the calls
    that have it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, list[ServedPolicy]] = {}  # the present one first

    def put(self, policy: ServedPolicy) -> ServedPolicy:
        """Make it the present version of its name; returns the one that acts from now on.

        A version that is there with the same content stays and becomes the present one. Raises
        AlreadyExists where its content is another, Exhausted where there are too many names."""
        with self._lock:
            versions = self._versions.get(policy.name, [])
            if not versions and len(self._versions) >= MAX_NAMES:
                raise Exhausted(
                    f"{MAX_NAMES} policies are served already; take one out first",
                    reason="TOO_MANY_POLICIES",
                )
            for there in versions:
                if there.version != policy.version:
                    continue
                if there.digest != policy.digest:
                    message = (
                        f"the policy {policy.name} has another version {policy.version} "
                        "already; give it a new one"
                    )
                    raise AlreadyExists(message, reason="VERSION_TAKEN")
                policy = there
            others = [there for there in versions if there is not policy]
            self._versions[policy.name] = [policy, *others][:VERSIONS_KEPT]
            return policy

    def find(
        self,
        name: str = "",
        version: str = "",
        is_visible: Callable[[ServedPolicy], bool] = lambda _: True,
    ) -> ServedPolicy:
        """The present version where none is given; the only visible policy where no name is. Raises
        NotFound, which names visible policies only."""
        with self._lock:
            versions = self._versions.get(name)
            if versions is None:
                visible = sorted(
                    known for known, (present, *_) in self._versions.items() if is_visible(present)
                )
                if name or len(visible) != 1:
                    names = ", ".join(visible) or "none"
                    problem = (
                        f"there is no policy {name[:100]!r}"
                        if name
                        else "the request names no policy"
                    )
                    raise NotFound(
                        f"{problem}; served here: {names}",
                        reason="UNKNOWN_POLICY",
                        policy=name[:100],
                    )
                (name,) = visible
                versions = self._versions[name]
            for policy in versions:
                if not version or policy.version == version:
                    return policy
            known = ", ".join(policy.version for policy in versions if is_visible(policy))
            raise NotFound(
                f"the policy {name} has no version {version[:100]!r}; it has: {known}",
                reason="UNKNOWN_VERSION",
                policy=name,
            )

    def versions(self, name: str) -> list[str]:
        """Versions that can be requested, the present one first."""
        with self._lock:
            return [policy.version for policy in self._versions.get(name, ())]

    def present(self) -> list[ServedPolicy]:
        """The present version of each policy, by name."""
        with self._lock:
            return [self._versions[name][0] for name in sorted(self._versions)]

    def remove(self, name: str) -> None:
        """Take it out with all of its versions. Raises NotFound."""
        with self._lock:
            if self._versions.pop(name, None) is None:
                raise NotFound(
                    f"there is no policy {name[:100]!r}", reason="UNKNOWN_POLICY", policy=name[:100]
                )
