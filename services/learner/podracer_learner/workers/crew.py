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

from podracer_core.errors import DeadlineExpired, Unavailable
from podracer_learner.workers.discovery import WorkerDirectory, WorkerDiscovery
from podracer_learner.workers.link import LinkOptions, WorkerLink
from podracer_learner.workers.shares import (
    Part,
    UsualDuration,
    consecutive,
    has_quorum,
    is_worth_moving,
    shares,
)

logger = logging.getLogger(__name__)

_SWAP_S = 0.5  # after which a spare worker takes over: a stream may break for less
_HANDOVER_S = 5.0  # after which others do: a worker that starts again needs about three
_SETTLED_S = 5.0  # between two changes, so that workers that come one by one come together
_REBALANCE_S = 20.0
_FROZEN_S = 20.0
_FROZEN_FACTOR = 10.0
_STARTING_S = 60.0  # environments may take long to start
# a worker whose session was shorter is not used for this time
_SHORT_LIFE_S, _AVOIDED_S = 5.0, 30.0

Assignment = Sequence[tuple[str, int]]
"""Address and number of environments of each worker, in the order of the parts."""


@dataclass(frozen=True, slots=True)
class CrewOptions:
    """The options of a crew.

    environments  of each member
    most          the most workers with a part; others are spares. 0: all
    fixed         parts stay: only a refused worker loses its part, and a lost one is waited for
    patience_s    how long to wait while there are too few workers
    check         called while waiting; raises to cancel
    """

    environments: int
    most: int
    fixed: bool
    patience_s: float
    check: Callable[[], None]


class WorkerCrew:
    """The workers of a round. `links` are in the order of their parts; `usual`: their usual time
    for a rollout. Used in one thread."""

    def __init__(
        self,
        options: CrewOptions,
        directory: WorkerDirectory,
        news: threading.Event,
        link: LinkOptions,
    ) -> None:
        """Starts looking for workers, without waiting. `link.arrived` sets `news`."""
        self._options = options
        self._directory = directory
        self._news = news
        self._link_options = link
        self.links: list[WorkerLink] = []
        self.usual = UsualDuration()
        self._changed_at = -math.inf
        self._short_since: float | None = None
        self._avoided: dict[str, float] = {}
        self._discovery = WorkerDiscovery(directory, news.set)

    @property
    def connected(self) -> int:
        """Workers with an open session."""
        return sum(link.opened for link in self.links)

    def poll(self) -> None:
        """Take arrived rollouts and replace lost workers. Raises Unavailable (WORKER_LOST) when
        patience ends, errors that any worker would have, and the reason if all workers are
        refused."""
        self._news.clear()
        self._options.check()
        if not self.links and self._discovery.known:
            present = [
                address
                for address in self._discovery.known
                if address not in self._directory.absent
            ]
            known = present if present and not self._options.fixed else self._discovery.known
            most = min(self._options.most or len(known), self._options.environments)
            addresses = known[:most]
            self._assign(
                list(
                    zip(
                        addresses,
                        shares(self._options.environments, [None] * len(addresses)),
                        strict=True,
                    )
                )
            )
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
        all_there = all(link.lost_since is None for link in staying)
        if all_there and not self._options.fixed and now - self._changed_at > _SETTLED_S:
            room = min(
                self._options.most or self._options.environments, self._options.environments
            ) - len(staying)
            joining = self._spares(now)[: max(room, 0)]
            addresses, rates = addresses + joining, rates + [None] * len(joining)
        counts = shares(self._options.environments, rates)
        changes = bool(gone) or len(addresses) > len(staying)
        if not changes:
            may_move = (
                all_there and not self._options.fixed and now - self._changed_at > _REBALANCE_S
            )
            present = [link.environments for link in staying]
            changes = may_move and is_worth_moving(present, rates, counts)
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
            link.close()
            if link.address not in staying:
                self._avoid(link)
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
            link.close()
            self._avoid(link)
            self.links[index] = self._link(spares[0], link.part)
            self._discovery.take([one.address for one in self.links])

    def _give_up_frozen(self) -> None:
        """Give up connected workers that do not answer, if the others are enough: only their own
        share is lost."""
        if self._options.fixed:
            return
        now, answer_s = time.monotonic(), max(_FROZEN_S, _FROZEN_FACTOR * self.usual.grace_s)
        for link in self.links:
            others = sum(one.environments for one in self.links if one is not link and one.opened)
            limit_s = answer_s if link.opened else _STARTING_S
            owes = (
                link.lost_since is None and not link.arrivals and (link.is_busy or not link.opened)
            )
            if (
                owes
                and link.age_s(now) > limit_s
                and has_quorum(others, self._options.environments)
            ):
                link.lose(DeadlineExpired(f"no message from it for {limit_s:.0f} s"))

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
            not self._options.fixed
            and link.lost_since is not None
            and now - link.lost_since > _HANDOVER_S
        )

    def _is_enough(self) -> bool:
        present = sum(link.environments for link in self.links if link.lost_since is None)
        wanted = self._options.environments
        return present == wanted if self._options.fixed else has_quorum(present, wanted)

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
        if now - self._short_since > self._options.patience_s:
            lost = [link for link in self.links if link.lost_since is not None]
            waited = f"for {self._options.patience_s:.0f} s"
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
        elif link.lived_s < _SHORT_LIFE_S:
            self._avoided[link.address] = now + _AVOIDED_S
