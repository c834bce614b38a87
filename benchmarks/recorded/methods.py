"""Methods of selection, replayed: which agent each chooses, and when, if all it may spend is a
number of looks.

A look's share of training costs one unit. No method can train an agent beyond the end of its
recorded curve; what it has left then is not spent. Copies and perturbed hyperparameters have no
recorded curve, so none is replayed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from recorded.replay import FEW, MANY, Draw

from podracer_core.evolution.rules import Rules
from podracer_core.evolution.rungs import (
    MINIMUM_PEERS,
    LineRound,
    fraction_at_stake,
    is_at_bottom,
    peer_scores,
)
from podracer_core.sections.evolution import Round
from podracer_core.statistics.shrinkage import posterior_means

Choice = tuple[int, int]
"""An agent and the look at which it is chosen."""

ETA, RUNGS = 3, 3
WORKERS = 2
"""Agents that asynchronous successive halving trains at once."""


def rungs(looks: int) -> list[int]:
    """The looks at which halving's rungs end; the last is the curves' end."""
    return [looks // ETA ** (RUNGS - 1 - rung) for rung in range(RUNGS)]


def cost(starts: int, looks: int) -> int:
    """What halving costs that begins with so many agents: the budget of all methods."""
    ends = rungs(looks)
    return sum(
        math.ceil(starts / ETA**rung) * (end - begin)
        for rung, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    )


def wide(draw: Draw, starts: int, budget: int) -> Choice:
    """Random search: all agents get the same share."""
    return _best(draw, dict.fromkeys(range(starts), min(budget // starts, draw.looks)))


def deep(draw: Draw, starts: int, budget: int) -> Choice:
    """Random search: one agent after the other is trained to the end."""
    full, rest = divmod(budget, draw.looks)
    reached = dict.fromkeys(range(min(full, len(draw.few))), draw.looks)
    if rest and full < len(draw.few):
        reached[full] = rest
    return _best(draw, reached)


def halving(draw: Draw, starts: int, budget: int) -> Choice:
    """Successive halving by the mean of the last look (Jamieson and Talwalkar 2016,
    arXiv:1502.07943)."""
    alive = list(range(starts))
    for rung, look in enumerate(rungs(draw.looks)[:-1]):
        alive.sort(key=lambda agent: -draw.few[agent, look])
        alive = alive[: math.ceil(starts / ETA ** (rung + 1))]
    return _best(draw, dict.fromkeys(alive, draw.looks))


def shrunken(draw: Draw, starts: int, budget: int) -> Choice:
    """Halving by posterior means of the last look, of which the better half of a rung has more
    episodes."""
    alive = list(range(starts))
    for rung, look in enumerate(rungs(draw.looks)):
        scores = _posterior(draw, alive, look)
        alive.sort(key=lambda agent: -scores[agent])
        alive = alive[: math.ceil(starts / ETA ** (rung + 1))]
    return alive[0], draw.looks


def asha(draw: Draw, starts: int, budget: int) -> Choice:
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2), which begins
    more agents whenever none can be promoted."""
    ends = rungs(draw.looks)
    ended: list[list[int]] = [[] for _ in ends]  # agents by rung
    promoted: list[set[int]] = [set() for _ in ends]
    reached: dict[int, int] = {}
    busy: list[tuple[int, int, int]] = []  # end, agent, rung
    now, spent, begun = 0, 0, 0
    while True:
        while len(busy) < WORKERS:
            rung, agent = _promotable(draw, ended, promoted) or (0, begun)
            length = ends[rung] - (ends[rung - 1] if rung else 0)
            if spent + length > budget or agent >= len(draw.few):
                break
            begun += rung == 0
            if rung:
                promoted[rung - 1].add(agent)
            spent += length
            heapq.heappush(busy, (now + length, agent, rung))
        if not busy:
            return _best(draw, reached)
        now, agent, rung = heapq.heappop(busy)
        ended[rung].append(agent)
        reached[agent] = ends[rung]


def tournament(draw: Draw, starts: int, budget: int) -> Choice:
    """The tournament's adaptive rounds, by the leaderboard's own rungs: at each milestone the worse
    half of a rung ends, as long as more agents live than are compared at least. Effort is in looks,
    the first milestone where halving's first rung ends. Nothing gives way between milestones, for
    only a copy may take its place."""
    rules = Rules(
        round=Round(env_steps=rungs(draw.looks)[0]), adaptive_rounds=True, replaced_fraction=0.0
    )
    reached = dict.fromkeys(range(starts), 0)
    alive, spent = list(range(starts)), 0
    rounds: list[LineRound] = []  # the greatest effort first
    while alive and spent < budget:
        agent = min(alive, key=lambda each: (reached[each], each))
        look = reached[agent]
        if look >= draw.looks:
            break
        if len(alive) > MINIMUM_PEERS and _stops(agent, rounds, rules, spent / budget):
            alive.remove(agent)
            continue
        reached[agent], spent = look + 1, spent + 1
        score, variance = draw.few[agent, look + 1], draw.few_variance[agent, look + 1]
        rounds.insert(0, LineRound(str(agent), look, look + 1, score, look + 1, FEW, variance))
        rounds.sort(key=lambda each: -each.after)
    return _best(draw, {agent: reached[agent] for agent in alive})


def oracle(draw: Draw, starts: int, budget: int) -> Choice:
    """Knows how the curves of these agents end."""
    return max(range(starts), key=lambda agent: draw.ends[agent]), draw.looks


Method = Callable[[Draw, int, int], Choice]
METHODS: dict[str, Method] = {
    "random search, each a share": wide,
    "random search, one by one": deep,
    "successive halving": halving,
    "ASHA": asha,
    "tournament, no copies": tournament,
    "halving on shrunken means": shrunken,
}
RANDOM = tuple(METHODS)[:2]
PROPOSED = tuple(METHODS)[-1]


def _best(draw: Draw, reached: dict[int, int]) -> Choice:
    """By the last look of each."""
    return max(reached.items(), key=lambda pair: draw.few[pair])


def _posterior(draw: Draw, alive: Sequence[int], look: int) -> dict[int, float]:
    by_few = sorted(alive, key=lambda agent: -draw.few[agent, look])
    leaders = set(by_few[: math.ceil(len(by_few) / 2)])
    means = [(draw.many if agent in leaders else draw.few)[agent, look] for agent in alive]
    variances = [
        (draw.many_variance if agent in leaders else draw.few_variance)[agent, look]
        for agent in alive
    ]
    episodes = [MANY if agent in leaders else FEW for agent in alive]
    return dict(zip(alive, posterior_means(means, episodes, variances), strict=True))


def _promotable(
    draw: Draw, ended: list[list[int]], promoted: list[set[int]]
) -> tuple[int, int] | None:
    """The next rung, and an agent that has earned it; from the top."""
    ends = rungs(draw.looks)
    for rung in reversed(range(RUNGS - 1)):
        best = sorted(ended[rung], key=lambda agent: -draw.few[agent, ends[rung]])[
            : len(ended[rung]) // ETA
        ]
        for agent in best:
            if agent not in promoted[rung]:
                return rung + 1, agent
    return None


def _stops(agent: int, rounds: Sequence[LineRound], rules: Rules, budget_used: float) -> bool:
    own = next((each for each in rounds if each.agent == str(agent)), None)
    if own is None:
        return False
    fraction = fraction_at_stake(rules, [own], budget_used)
    return fraction > 0.0 and is_at_bottom(own.score, peer_scores(own, rounds), fraction)
