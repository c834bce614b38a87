"""The workers of a round: how environments are shared among them as workers leave, join or are
slow.

The part of a lost worker goes to a spare worker at once, if there is one. Else the crew tries to
reconnect, and after a few seconds shares all environments among the remaining workers. It also
shares them anew when workers have joined, and when others wait for slow ones. A worker begins new
episodes in environments that it did not have before."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from podracer.common.v1 import cohort_pb2, environment_pb2
from podracer_core.errors import Unavailable
from podracer_learner.peers import WorkerDirectory, WorkerDiscovery
from podracer_learner.user_files import FetchedFiles
from podracer_learner.workers.link import LinkOptions, Opening, WorkerLink
from podracer_learner.workers.partition import (
    Part,
    UsualDuration,
    consecutive,
    has_quorum,
    is_worth_moving,
    shares,
)
from podracer_platform.carriers import Endpoint

logger = logging.getLogger(__name__)

_SILENCE_S = 300.0  # of a worker that cannot be done without
_SWAP_S = 0.5  # after which a spare worker takes over: a stream may break for less
_SETTLED_S = (
    5.0  # a worker that starts again is back, and workers that come one by one come together
)
_REBALANCE_S = 20.0
_FROZEN_S = 20.0
_FROZEN_FACTOR = 10.0
_STARTING_S = 60.0  # environments may take long to start
_AVOIDED_S = 30.0  # a worker whose session was no longer than _SETTLED_S

Assignment = Sequence[tuple[str, int]]
"""Address and number of environments of each worker, in the order of the parts."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The options of collection through workers.

    files        of the environment
    lock_step    always: a rollout begins only on the weights from the one before, and waits for all
                 workers. Parts stay: only a refused worker loses its part, and a lost one is waited
                 for
    ahead        rollouts that workers collect ahead of training, 0 to 2; None: measured
    max_workers  the most workers with a part; others are spares. 0: all
    patience_s   how long to wait while there are too few workers
    check        is called while waiting and raises to cancel
    check_environment  raises PreconditionFailed for a worker with another environment than expected
    endpoint     the carriers for rollouts
    first_environment  number of the first environment within each member
    rollout_s    seconds after which workers end a rollout with what they have; 0: no limit
    """

    cohort: cohort_pb2.CohortSpec
    files: FetchedFiles
    envs_per_member: int
    horizon: int
    lock_step: bool
    ahead: int | None
    max_workers: int
    patience_s: float
    check: Callable[[], None]
    check_environment: Callable[[environment_pb2.EnvironmentDescription], None]
    endpoint: Endpoint
    first_environment: int = 0
    rollout_s: float = 0.0


class WorkerCrew:
    """The workers of a round. `links` are in the order of their parts; `usual`: their usual time
    for a rollout. Used in one thread."""

    def __init__(self, plan: WorkerPlan, directory: WorkerDirectory, opening: Opening) -> None:
        """Starts looking for workers, without waiting. `opening`: see `LinkOptions`."""
        self._plan, self._directory = plan, directory
        self._most = min(plan.max_workers or plan.envs_per_member, plan.envs_per_member)
        self._news = threading.Event()
        self._link_options = LinkOptions(
            opening,
            plan.files,
            plan.check_environment,
            _SILENCE_S,
            self._news.set,
            plan.endpoint,
            with_environment_state=plan.lock_step,
        )
        self.links: list[WorkerLink] = []
        self.usual = UsualDuration()
        self._changed_at = -math.inf
        self._short_since: float | None = None
        self._avoided: dict[str, float] = {}
        self._discovery = WorkerDiscovery(directory, self._news.set)

    @property
    def connected(self) -> int:
        """Workers with an open session."""
        return sum(link.opened for link in self.links)

    def poll(self) -> None:
        """Take arrived rollouts and replace lost workers. Raises Unavailable (WORKER_LOST) when
        patience ends, errors that any worker would have, and the reason if all workers are
        refused."""
        self._news.clear()
        self._plan.check()
        if not self.links and (known := self._discovery.known):
            present = [address for address in known if address not in self._directory.absent]
            addresses = (present if present and not self._plan.lock_step else known)[: self._most]
            counts = shares(self._plan.envs_per_member, [None] * len(addresses))
            self._assign(list(zip(addresses, counts, strict=True)))
        for link in self.links:
            link.poll()
        self._give_up_frozen()
        self._replace_lost()
        if not self._is_enough() and (change := self.change_due()) is not None:
            self._assign(change)
        self._require_enough()

    def wait(self, timeout_s: float) -> None:
        """Wait until `poll` has something to do."""
        self._news.wait(timeout_s)

    def regroup(self) -> None:
        """Share the environments anew between two rollouts, if that is due and no worker has begun
        the next one."""
        change = self.change_due()
        if change is not None and not any(
            link.arrivals or (link.times.outstanding and not link.late) for link in self.links
        ):
            self._assign(change)

    def change_due(self) -> Assignment | None:
        """The new assignment of environments, if they should be shared differently."""
        now = time.monotonic()
        gone = [link for link in self.links if self._is_gone(link, now)]
        staying = [link for link in self.links if link not in gone]
        if not staying:
            return None
        addresses = [link.address for link in staying]
        rates = [link.rate for link in staying]
        unchanged_s = -math.inf  # how long parts have been such that they may change hands
        if not self._plan.lock_step and all(link.lost_since is None for link in staying):
            unchanged_s = now - self._changed_at
        if unchanged_s > _SETTLED_S:
            joining = self._spares(now)[: max(self._most - len(staying), 0)]
            addresses, rates = addresses + joining, rates + [None] * len(joining)
        counts = shares(self._plan.envs_per_member, rates)
        changes = bool(gone) or len(addresses) > len(staying)
        if not changes and unchanged_s > _REBALANCE_S:
            changes = is_worth_moving([link.environments for link in staying], rates, counts)
        return list(zip(addresses, counts, strict=True)) if changes else None

    def close(self) -> None:
        """End all sessions."""
        self._discovery.close()
        there = {link.address for link in self.links if link.opened} | set(self._discovery.free())
        self._directory.absent = frozenset(self._discovery.known or ()) - there
        for link in self.links:
            link.close()

    def _assign(self, wanted: Assignment) -> None:
        """Give each worker its part. Workers with an unchanged part continue."""
        before = {link.address: link for link in self.links}
        parts = consecutive([count for _, count in wanted])
        links = []
        for (address, _), part in zip(wanted, parts, strict=True):
            link = before.get(address)
            if link is not None and link.part == part and not link.refused:
                del before[address]
                links.append(link)
                continue
            if link is not None:
                link.close()
            links.append(self._link(address, part, late=link is not None and link.late))
        staying = {address for address, _ in wanted}
        for link in before.values():
            if link.address not in staying:
                self._avoid(link)
            link.close()
        logger.info(
            "environments: %s", ", ".join(f"{count} at {address}" for address, count in wanted)
        )
        self.links, self._changed_at = links, time.monotonic()
        self.usual.clear()
        self._discovery.take([link.address for link in links])

    def _replace_lost(self) -> None:
        now = time.monotonic()
        for index, link in enumerate(self.links):
            if link.lost_since is None or not (link.refused or now - link.lost_since > _SWAP_S):
                continue
            spares = self._spares(now)
            if not spares:
                return
            logger.info("worker %s takes over from %s", spares[0], link.address)
            self._avoid(link)
            link.close()
            self.links[index] = self._link(spares[0], link.part)
            self._discovery.take([one.address for one in self.links])

    def _give_up_frozen(self) -> None:
        """Give up connected workers that do not answer, if the others are enough: only their own
        share is lost."""
        if self._plan.lock_step:
            return
        now, answer_s = time.monotonic(), max(_FROZEN_S, _FROZEN_FACTOR * self.usual.grace_s)
        for link in self.links:
            others = sum(one.environments for one in self.links if one is not link and one.opened)
            limit_s = answer_s if link.opened else _STARTING_S
            owes = link.times.outstanding or not link.opened
            if not owes or link.lost_since is not None or link.arrivals:
                continue
            if link.age_s(now) > limit_s and has_quorum(others, self._plan.envs_per_member):
                link.lose_silent(limit_s)

    def _link(self, address: str, part: Part, *, late: bool = False) -> WorkerLink:
        """`late`: the worker was late with another part, so rollouts do not wait for it until it
        has been in time."""
        link = WorkerLink(
            address, functools.partial(self._directory.open, address), part, self._link_options
        )
        link.late = late
        return link

    def _is_gone(self, link: WorkerLink, now: float) -> bool:
        if link.refused:
            return True
        return (
            not self._plan.lock_step
            and link.lost_since is not None
            and now - link.lost_since > _SETTLED_S
        )

    def _is_enough(self) -> bool:
        present = sum(link.environments for link in self.links if link.lost_since is None)
        wanted = self._plan.envs_per_member
        return present == wanted if self._plan.lock_step else has_quorum(present, wanted)

    def _require_enough(self) -> None:
        now = time.monotonic()
        if self._is_enough():
            self._short_since = None
            return
        if self.links and all(link.refused for link in self.links):
            problem = self.links[0].problem
            assert problem is not None, "a worker is refused for a reason"
            raise problem
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since > self._plan.patience_s:
            lost = [link for link in self.links if link.lost_since is not None]
            waited = f"for {self._plan.patience_s:.0f} s"
            told = [f"lost worker {link.address} {waited}: {link.problem}" for link in lost]
            raise Unavailable(
                "; ".join(told) or f"found no worker {waited} at {self._directory}",
                reason="WORKER_LOST",
                worker=lost[0].address if lost else "",
            )

    def _spares(self, now: float) -> list[str]:
        return [
            address
            for address in self._discovery.free()
            if self._avoided.get(address, -math.inf) <= now
        ]

    def _avoid(self, link: WorkerLink) -> None:
        """Do not ask an unsuitable worker again. One of another build may be asked again: another
        worker may get its address, and discovery checks builds."""
        now = time.monotonic()
        if link.refused and link.problem is not None and link.problem.reason != "BUILD_MISMATCH":
            self._avoided[link.address] = math.inf
        elif link.lived_s < _SETTLED_S:
            self._avoided[link.address] = now + _AVOIDED_S
