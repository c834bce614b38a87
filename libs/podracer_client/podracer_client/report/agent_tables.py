"""Agents as tables of a page: the leaderboard, the final population, all agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from podracer_client.display.catalogue import hyperparameters_text, telling_names
from podracer_client.display.leaderboard import origin_text
from podracer_client.display.numbers import count_text, return_text
from podracer_client.display.score import best_first
from podracer_client.report.families import LIVING
from podracer_client.report.html import Content, Markup, element, join, table
from podracer_client.report.records import Agent, JobReport

MAX_ROWS = 300
_NUMBERS = (
    "rank",
    "score",
    "best score",
    "mean",
    "95 % interval",
    "episodes",
    "steps",
    "device s",
    "rounds",
)


def leaderboard_table(report: JobReport, colors: Mapping[str, str]) -> Markup:
    """The ranking as a table; empty if no agent is ranked."""
    if not report.candidates:
        return Markup()
    agents = {agent.name: agent for agent in report.agents}
    ranked = [
        agents[candidate.agent] for candidate in report.candidates if candidate.agent in agents
    ]
    telling = telling_names((agent.algorithm, agent.hyperparameters) for agent in ranked)
    rows: list[list[Content]] = []
    for candidate in report.candidates:
        evaluation, agent = candidate.evaluation, agents.get(candidate.agent)
        rows.append(
            [
                str(candidate.rank),
                candidate.agent,
                algorithm(agent.algorithm, colors) if agent else "",
                number(candidate.score),
                number(evaluation.mean),
                f"{number(evaluation.lower)} to {number(evaluation.upper)}",
                f"{evaluation.episodes:,}",
                "yes" if candidate.confirmed else "no",
                count_text(evaluation.env_steps),
                f"{agent.cost_s:,.1f}" if agent else "",
            ]
        )
    below = [
        _sentence(
            candidate.note,
            origin(agent),
            hyperparameters_text(agent.hyperparameters, telling[agent.algorithm]),
        )
        if (agent := agents.get(candidate.agent))
        else ""
        for candidate in report.candidates
    ]
    titles = (
        *(
            "rank",
            "agent",
            "algorithm",
            "score",
            "mean",
            "95 % interval",
            "episodes",
            "confirmed",
            "steps",
        ),
        "device s",
    )
    caption = (
        f"The score is the {report.objective.statistic}. Confirmed: evaluated a second time, with "
        "fresh seeds. Steps: of the agent and its ancestors up to this snapshot; device seconds: "
        "all that they have had. Hyperparameters: those that differ between these agents or from "
        "their defaults."
    )
    return table(titles, rows, right=_NUMBERS, below=below, caption=caption)


def population_table(report: JobReport, colors: Mapping[str, str]) -> Markup:
    """The agents of the final population, the best first."""
    living = [agent for agent in report.agents if agent.state in LIVING]
    return _agent_table(report, best_first(living), colors)


def all_agents(report: JobReport, colors: Mapping[str, str]) -> Markup:
    """All agents, in a collapsed section."""
    if not report.agents:
        return Markup()
    summary = element("summary", f"All {len(report.agents):,} agents, oldest first")
    return element("details", join((summary, _agent_table(report, report.agents, colors))))


def algorithm(name: str, colors: Mapping[str, str]) -> Markup:
    """The algorithm with a mark in its colour."""
    mark = (
        element("span", "", class_="mark", style=f"background:{colors[name]}")
        if name in colors
        else Markup()
    )
    return Markup(mark + element("span", name))


def origin(agent: Agent) -> str:
    """`from a0003`, and the agent that it replaced."""
    return origin_text(agent.start, agent.parents, agent.replaced)


def number(value: float | None) -> str:
    return return_text(value).replace("-", "−")


def _agent_table(report: JobReport, agents: Iterable[Agent], colors: Mapping[str, str]) -> Markup:
    people = list(agents)
    if not people:
        return Markup()
    telling = telling_names((agent.algorithm, agent.hyperparameters) for agent in report.agents)
    rows: list[list[Content]] = [
        [
            agent.name,
            algorithm(agent.algorithm, colors),
            agent.state.lower(),
            number(agent.score),
            count_text(agent.env_steps),
            f"{agent.cost_s:,.1f}",
            str(agent.rung),
        ]
        for agent in people[:MAX_ROWS]
    ]
    below = [
        _sentence(
            f"{origin(agent)} ({agent.failure or agent.reason or 'no reason given'})",
            agent.exclusion and f"cannot be first: {agent.exclusion}",
            hyperparameters_text(agent.hyperparameters, telling[agent.algorithm]),
        )
        for agent in people[:MAX_ROWS]
    ]
    titles = ("agent", "algorithm", "state", "best score", "steps", "device s", "rounds")
    note = f"The first {MAX_ROWS:,} of {len(people):,}." if len(people) > MAX_ROWS else ""
    return table(titles, rows, right=_NUMBERS, below=below, caption=note)


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))
