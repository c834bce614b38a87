"""The work of pods over time, from the events of a job, and their throughput, from the steps in its
evaluations; the family tree of agents: an order that keeps families together, the surviving lines,
the ancestors of the best agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from podracer_client.jobs import Agent, Evaluation, Event, History

LOST = frozenset({"LEASE_EXPIRED", "WORK_FAILED", "POD_LOST"})
_BINS = 80


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
    """The history of one pod: its leases and its other events, oldest first."""

    name: str
    spans: tuple[Span, ...]
    incidents: tuple[Event, ...]

    @property
    def first_s(self) -> float:
        """The time at which it joined, or of its first event."""
        return min(
            [span.start_s for span in self.spans] + [event.time_s for event in self.incidents]
        )

    @property
    def last_s(self) -> float:
        """The time of its last event."""
        return max([span.end_s for span in self.spans] + [event.time_s for event in self.incidents])


def pod_histories(events: Iterable[Event], now_s: float) -> tuple[PodHistory, ...]:
    """The history of each pod in the events, in order of appearance.

    A lease ends with the next event of its fence, or of its work if the event has no fence, and at
    the latest when its pod gets the next lease."""
    held: dict[str, Event] = {}  # pod: the event that granted its lease
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
    histories = [
        PodHistory(pod, tuple(found), tuple(incidents[pod])) for pod, found in spans.items()
    ]
    return tuple(
        sorted(
            (each for each in histories if each.spans or each.incidents),
            key=lambda each: each.first_s,
        )
    )


def _marks(event: Event) -> list[tuple[str, str]]:
    """The keys that identify the lease of an event, the most exact first."""
    return [(key, event.details[key]) for key in ("fence", "work") if key in event.details]


def throughput(report: History) -> tuple[list[float], list[float]]:
    """The edges of equal time intervals (one more than rates), and the steps per second of all
    agents in each.

    An agent's steps between two evaluations are spread evenly over the training time of its lease
    between them. Steps after an agent's last evaluation are not included, so the sum is a little
    below the job's steps."""
    start_s, end_s = report.start_s or 0.0, report.now_s
    if end_s <= start_s:
        return [], []
    width = (end_s - start_s) / _BINS
    steps = [0.0] * _BINS
    for begin_s, until_s, count in _stretches(report):
        first, last = (
            min(_BINS - 1, max(0, int((time_s - start_s) / width))) for time_s in (begin_s, until_s)
        )
        if first == last:
            steps[first] += count
            continue
        for index in range(first, last + 1):
            inside = min(until_s, start_s + (index + 1) * width) - max(
                begin_s, start_s + index * width
            )
            steps[index] += count * max(0.0, inside) / (until_s - begin_s)
    return [start_s + index * width for index in range(_BINS + 1)], [
        count / width for count in steps
    ]


def last_evaluations(report: History) -> dict[str, float]:
    """The time of each agent's last evaluation."""
    last: dict[str, float] = {}
    for evaluation in report.evaluations:
        if evaluation.time_s is not None:
            last[evaluation.agent] = max(evaluation.time_s, last.get(evaluation.agent, 0.0))
    return last


def job_steps(report: History) -> list[tuple[Evaluation, float]]:
    """Every evaluation whose time is known, oldest first, with the total steps of all agents until
    then."""
    first = {agent.name: agent.start_steps for agent in report.agents}
    latest: dict[str, int] = {}
    total = 0.0
    found = []
    for evaluation in report.evaluations:
        if evaluation.time_s is None:
            continue
        before = latest.get(evaluation.agent, first.get(evaluation.agent, 0))
        if evaluation.env_steps > before:
            total += evaluation.env_steps - before
            latest[evaluation.agent] = evaluation.env_steps
        found.append((evaluation, total))
    return found


def _stretches(report: History) -> list[tuple[float, float, int]]:
    """Begin, end and steps of every stretch of training between two evaluations of an agent."""
    first = {agent.name: (agent.create_s or 0.0, agent.start_steps) for agent in report.agents}
    latest: dict[str, tuple[float, int]] = {}
    found = []
    for evaluation in report.evaluations:
        if evaluation.time_s is None:
            continue
        since_s, steps = latest.get(evaluation.agent) or first.get(evaluation.agent, (0.0, 0))
        if evaluation.env_steps <= steps:
            continue
        begin_s = (
            max(since_s, evaluation.time_s - evaluation.train_s)
            if evaluation.train_s > 0
            else since_s
        )
        found.append(
            (min(begin_s, evaluation.time_s), evaluation.time_s, evaluation.env_steps - steps)
        )
        latest[evaluation.agent] = (evaluation.time_s, evaluation.env_steps)
    return found


LIVING = ("TRAINING", "WAITING")


def family_order(agents: Iterable[Agent]) -> list[Agent]:
    """Every agent once, children below their first parent, older ones first."""
    people = list(agents)
    known = {agent.name for agent in people}
    children: dict[str, list[Agent]] = {}
    roots = []
    for agent in people:
        parent = next(
            (name for name in agent.parents if name in known and name != agent.name), None
        )
        if parent is None:
            roots.append(agent)
        else:
            children.setdefault(parent, []).append(agent)
    ordered: dict[str, Agent] = {}
    for root in roots:
        waiting = [root]
        while waiting:  # not recursive: a line may be thousands of agents long
            agent = waiting.pop()
            if agent.name not in ordered:
                ordered[agent.name] = agent
                waiting.extend(reversed(children.get(agent.name, [])))
    ordered.update({agent.name: agent for agent in people if agent.name not in ordered})
    return list(ordered.values())


def ancestors(agents: Iterable[Agent], names: Collection[str]) -> set[str]:
    """The agents called `names` and all their ancestors."""
    by_name = {agent.name: agent for agent in agents}
    found: set[str] = set()
    waiting = [name for name in names if name in by_name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(parent for parent in by_name[name].parents if parent in by_name)
    return found


def living_lines(agents: Iterable[Agent]) -> set[str]:
    """Surviving agents and their ancestors."""
    people = list(agents)
    return ancestors(people, [agent.name for agent in people if agent.state in LIVING])


def best_agent(report: History) -> str:
    """The first of the leaderboard, else the agent of the job's best evaluation; empty for none."""
    if report.candidates:
        return report.candidates[0].agent
    return report.best.agent if report.best else ""


def most_telling(report: History, limit: int) -> list[Agent]:
    """At most `limit` agents in the job's order: the board's and their ancestors, then the best,
    then the newest.

    If a single line of ancestors is longer than that, its newest agents.
    """
    if len(report.agents) <= limit:
        return list(report.agents)
    board = ancestors(report.agents, [candidate.agent for candidate in report.candidates])
    places = {agent.name: place for place, agent in enumerate(report.agents)}

    def key(agent: Agent) -> tuple[bool, float, int]:
        if agent.name in board:
            return (False, 0.0, -places[agent.name])
        return (True, float("inf") if agent.score is None else -agent.score, -places[agent.name])

    chosen = {agent.name for agent in sorted(report.agents, key=key)[:limit]}
    return [agent for agent in report.agents if agent.name in chosen]
