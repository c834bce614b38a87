"""The leaderboard as text: a line for each candidate, below it where it came from and what it was
trained with."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_client.display.output import (
    columns,
    count_text,
    hyperparameters_text,
    interval_text,
    return_text,
    telling_names,
)
from podracer_client.jobs import agent_hyperparameters, broken_text, corrected_means
from podracer_client.names import enum_word, seconds, short_name

_WIDTH = 100
_LEAST_WIDTH = 60
_INDENT = " " * 6
_STARTS = {
    "FRESH": "fresh",
    "COPY": "from {}",
    "NOISE": "from {} with noise",
    "FUSE": "fused from {}",
}


def leaderboard_text(
    board: leaderboard_service_pb2.Leaderboard, *, every: bool = False, width: int | None = None
) -> str:
    """The ranking; `every` shows all hyperparameters, not only those that differ between agents or
    from defaults."""
    if not board.candidates:
        return f"{board.name}: no agent is ranked yet; {board.agent_count} agents so far\n"
    if width is None:
        width = max(_LEAST_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    agents = [candidate.agent for candidate in board.candidates]
    values = [agent_hyperparameters(agent.spec) for agent in agents]
    telling = telling_names(
        (agent.spec.algorithm, own) for agent, own in zip(agents, values, strict=True)
    )
    corrected = corrected_means([candidate.evaluation for candidate in board.candidates])
    rows = [_row(*pair, board) for pair in zip(board.candidates, corrected, strict=True)]
    titles = (
        "rank",
        "agent",
        "algorithm",
        "score",
        "mean",
        "corrected",
        "95 % interval",
        "confirmed",
        "steps",
        "device s",
    )
    head, *lines = columns(
        titles,
        rows,
        right=("rank", "score", "mean", "corrected", "95 % interval", "steps", "device s"),
    ).splitlines()
    found = [head]
    for line, candidate, own in zip(lines, board.candidates, values, strict=True):
        agent = candidate.agent
        names = None if every else telling[agent.spec.algorithm]
        details = [broken_text(candidate), _origin(agent), hyperparameters_text(own, names)]
        below = textwrap.wrap(
            "; ".join(filter(None, details)),
            width,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_on_hyphens=False,
        )
        found += [line, *below]
    found += textwrap.wrap(first_text(board), width)
    return "\n".join(found) + "\n"


def first_text(board: leaderboard_service_pb2.Leaderboard) -> str:
    """Why the first stands above a better score; empty where none is better."""
    first, *others = board.candidates
    if not any(each.score > first.score and not each.exclusion for each in others):
        return ""
    is_final = first.evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_FINAL
    what = "the job's final" if is_final else "an evaluation with fresh seeds"
    name, count = short_name(first.agent.name), len(first.evaluation.returns)
    why = "A better score below it selected its policy, or comes from fewer fresh episodes."
    return f"{name} is first by {what} ({count} episodes). {why}"


def origin_text(start: str, parents: Sequence[str], replaced: str) -> str:
    """`fresh`, `from a0003`, `fused from a0003 and a0007`; and the agent that it replaced. `start`
    is FRESH, COPY, …"""
    text = _STARTS.get(start, start.lower()).format(" and ".join(parents)) if parents else "fresh"
    return f"{text}, for {replaced}" if replaced else text


def _origin(agent: leaderboard_service_pb2.Agent) -> str:
    start = enum_word(agent_pb2.InitializationKind, agent.spec.initialization.kind)
    origin = origin_text(start, list(map(short_name, agent.parents)), short_name(agent.replaced))
    return f"pinned; {origin}" if agent.pinned else origin


def _row(
    candidate: leaderboard_service_pb2.Candidate,
    corrected: float,
    board: leaderboard_service_pb2.Leaderboard,
) -> tuple[str, ...]:
    evaluation, agent = candidate.evaluation, candidate.agent
    return (
        str(candidate.rank),
        short_name(agent.name),
        agent.spec.algorithm,
        return_text(candidate.score),
        return_text(evaluation.mean),
        return_text(corrected),
        interval_text(evaluation.lower_bound, evaluation.upper_bound),
        "yes" if candidate.confirmed else "no",
        count_text(evaluation.env_steps),
        f"{seconds(agent.cost):,.1f}",
    )
