"""The family tree of agents: an order that keeps families together, the surviving lines, the
ancestors of the best agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from podracer_client.jobs import Agent, History

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
