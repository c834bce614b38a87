"""When pods worked, from the events of a job: every lease begins, and ends somehow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from podracer_client.report.records import Event

LOST = frozenset({"LEASE_EXPIRED", "WORK_FAILED", "POD_LOST"})


@dataclass(frozen=True, slots=True)
class Span:
    """A lease of a pod; `end` is the kind of the event that ended it, empty while it is held."""

    pod: str
    start_s: float
    end_s: float
    end: str

    @property
    def was_lost(self) -> bool:
        return self.end in LOST


@dataclass(frozen=True, slots=True)
class PodHistory:
    """What one pod did: its leases, and whatever else happened to it, oldest first."""

    name: str
    spans: tuple[Span, ...]
    incidents: tuple[Event, ...]

    @property
    def first_s(self) -> float:
        """When it joined, or was first heard of."""
        return min([span.start_s for span in self.spans] + [event.time_s for event in self.incidents])

    @property
    def last_s(self) -> float:
        """When it was last heard of."""
        return max([span.end_s for span in self.spans] + [event.time_s for event in self.incidents])


def pod_histories(events: Iterable[Event], now_s: float) -> tuple[PodHistory, ...]:
    """One of each pod that the events name, in the order in which they came.

    A lease ends with the next event of its fence, or of its work where no fence is told, at the latest where its pod
    gets the next one.
    """
    held: dict[str, Event] = {}  # pod: the event that granted what it holds
    holders: dict[tuple[str, str], str] = {}  # fence or work: the pod that got it last
    spans: dict[str, list[Span]] = {}
    incidents: dict[str, list[Event]] = {}

    def end(pod: str, time_s: float, kind: str) -> None:
        spans[pod].append(Span(pod, held.pop(pod).time_s, time_s, kind))

    for event in events:
        if event.about == "pods":
            spans.setdefault(event.subject, [])
            incidents.setdefault(event.subject, [])
        if event.kind == "LEASE_GRANTED":
            if event.subject in held:
                end(event.subject, event.time_s, "")
            held[event.subject] = event
            holders.update(dict.fromkeys(_marks(event), event.subject))
            continue
        mark = next(iter(_marks(event)), None)
        pod = holders.get(mark, "") if mark else ""
        if pod in held and mark in _marks(held[pod]):
            end(pod, event.time_s, event.kind)
        elif event.about == "pods":
            incidents[event.subject].append(event)
    for pod in list(held):
        end(pod, max(held[pod].time_s, now_s), "")
    histories = [PodHistory(pod, tuple(found), tuple(incidents[pod])) for pod, found in spans.items()]
    return tuple(sorted((each for each in histories if each.spans or each.incidents), key=lambda each: each.first_s))


def _marks(event: Event) -> list[tuple[str, str]]:
    """What tells the lease that an event is about, the more exact first."""
    return [(key, event.details[key]) for key in ("fence", "work") if key in event.details]
