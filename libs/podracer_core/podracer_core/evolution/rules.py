"""How the agents of one leaderboard compete: the job's wishes with every default filled in.

The size of a round: its steps and seconds, stretched for agents that improve; and, from what rounds
have measured, the number of agents of one shape that a pod best trains at once. The orchestrator
cuts a round to the budget.

Rungs: the scores that an agent is judged against, none of longer training, and which agents give
way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from podracer_core.sections import Evolution
from podracer_core.statistics import posterior_means


@dataclass(frozen=True)
class Rules(Evolution):
    """Frozen at the leaderboard's creation; generations 0: until the budget ends."""

    leaderboard_size: int = 4
    lineage_limit: int = 2
    generations: int = 0
    adaptive_rounds: bool = False
    generator: str = "tournament"
    updater: str = "lower_bound"
    seed: int = 0

    @classmethod
    def of(cls, evolution: Evolution, *, seed: int, updater: str, algorithm_count: int) -> Rules:
        """`evolution` with its defaults filled in; `updater` is that of the objective's
        statistic."""
        generator, adaptive = evolution.generator or evolution.scheduler, evolution.adaptive_rounds
        halves = generator in ("tournament", "halving") and algorithm_count > 1
        filled = {
            "leaderboard_size": evolution.places,
            "lineage_limit": evolution.lineage_limit or (evolution.places + 1) // 2,
            "generations": evolution.generations or 0,
            "adaptive_rounds": generator == "asha" or (halves if adaptive is None else adaptive),
            "generator": generator,
            "updater": evolution.updater or updater,
        }
        return cls(**{**vars(evolution), **filled}, seed=seed)

    @property
    def round_env_steps(self) -> int:
        """0: the round is limited by time."""
        return self.round.env_steps or 0

    @property
    def round_time_s(self) -> float:
        """0: the round is limited by steps."""
        return self.round.seconds or 0.0

    @property
    def shape_limit(self) -> int:
        """How many shapes of one algorithm may be alive: more would leave too few agents in a
        cohort to be worth it."""
        return max(2, self.population // 4)

    def effort(self, env_steps: int, cost_s: float) -> float:
        """The effort by which lines are compared: environment steps if rounds are in steps, else
        device seconds / M."""
        return float(env_steps) if self.round_env_steps else cost_s


MAX_STRETCH = 4.0
"""How many times its usual length a round of improving agents may be: a look at them is never far
away."""

TRIED_ROUNDS = 2.0
"""Rounds of a size that say enough of it: the first may have built and warmed up what the next ones
use."""

PATIENCE_ROUNDS = 4.0
"""Rounds of a size before half of it is tried, which may waste up to half of two rounds."""

PAYS = 1.1
"""Gain in throughput that twice the size must have for a still larger one to be tried."""

CLEARLY = 1.05
"""Gain in throughput that a smaller size must have to be preferred: agents that train on together
stay in the memory of their pod."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest that a job may still reserve for all of its agents together; infinite without a
    limit."""

    env_steps: float = math.inf
    cost_s: float = math.inf

    @property
    def is_nothing(self) -> bool:
        return self.env_steps < 1 or self.cost_s <= 0

    def places(self, wanted: int) -> int:
        """How many members a round may have so that each gets at least one step."""
        return int(min(wanted, self.env_steps))


@dataclass(frozen=True, slots=True)
class RoundBudget:
    """The limits of one round: steps of each member (0: none) and seconds of the pod (0: none)."""

    env_steps: int
    time_s: float


def round_budget(rules: Rules, stretch: float = 1.0) -> RoundBudget:
    """The round of a cohort."""
    return RoundBudget(math.floor(rules.round_env_steps * stretch), rules.round_time_s * stretch)


def cohort_stretch(curves: Iterable[Sequence[float]]) -> float:
    """How many times the usual length the round of a cohort may be: the mean of what its members
    deserve.

    `curves` are each member's last scores, oldest first; empty for one that was never judged.
    """
    deserved = [agent_stretch(curve) for curve in curves]
    return math.fsum(deserved) / len(deserved) if deserved else 1.0


def agent_stretch(curve: Sequence[float]) -> float:
    """1 for an agent whose last score is no record of its curve; doubled for each record in a row,
    up to 4.

    Records need no scale and no estimate of the noise: a curve that only fluctuates has one in n
    looks."""
    is_record = [
        score > best for score, best in zip(curve[1:], accumulate(curve, max), strict=False)
    ]
    in_a_row = next(
        (count for count, record in enumerate(reversed(is_record)) if not record), len(is_record)
    )
    return min(MAX_STRETCH, 2.0**in_a_row)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of rounds of one shape and size: steps and device seconds of all members
    together."""

    env_steps: float
    cost_s: float
    rounds: float

    @property
    def env_steps_per_s(self) -> float:
        """Environment steps of the whole cohort for each device second."""
        return self.env_steps / self.cost_s

    def with_member(self, env_steps: int, cost_s: float, member_count: int) -> Throughput:
        """The throughput with one more member's round; older rounds count ever less, the last eight
        or so matter.

        A member's cost is already its share of the pod's time, so members' costs add up to device
        seconds."""
        kept = 1.0 - 1.0 / (8.0 * member_count)
        return Throughput(
            self.env_steps * kept + env_steps,
            self.cost_s * kept + cost_s,
            self.rounds + 1.0 / member_count,
        )


def member_limit(measured: Mapping[int, Throughput], most: int) -> int:
    """How many members a cohort may have, of at most `most`; `measured` is by cohort size.

    `most` until something is known; then the size with the best throughput of the whole cohort.
    Twice that is tried while the last doubling has paid, half of it once where nothing smaller has
    been."""
    tried = {
        size: measured[size].env_steps_per_s
        for size in sorted(measured)
        if size <= most and measured[size].rounds >= TRIED_ROUNDS and measured[size].cost_s > 0.0
    }
    if not tried:
        return most
    best = max(tried)
    for size in sorted(tried, reverse=True):
        if tried[size] > CLEARLY * tried[best]:
            best = size
    if best == max(tried) < most and _has_paid(tried, best):
        return min(2 * best, most)
    if best == min(tried) and measured[best].rounds >= PATIENCE_ROUNDS:
        return max(1, best // 2)
    return best


def _has_paid(tried: Mapping[int, float], size: int) -> bool:
    """Whether `size` is that much better than half of it; nothing known speaks for trying."""
    smaller = [each for each in tried if 2 * each <= size]
    return not smaller or tried[size] >= PAYS * tried[max(smaller)]


MINIMUM_PEERS = 4
"""Fewer scores than this say too little to replace anyone."""

AS_FAR = 0.97
"""A line has come as far as another where it has had this part of its effort: timed rounds differ a
little."""

SAME_FROM, SAME_TO = 0.75, 1.1
"""Bounds, as parts of an agent's effort, between which another's round counts as of the same
effort."""

EARLY, ENOUGH_ROUNDS = 1 / 3, 10
"""No agent gives way in this part of the job's budget, unless it has trained for so many whole
rounds: slow starters are often the best in the end."""

HALVING = 0.5
"""Part of a rung that is stopped at a milestone: successive halving with eta = 2."""


@dataclass(frozen=True, slots=True)
class LineRound:
    """A judged round of an agent: the effort of its line, its ancestors' included, before and after
    it, and the score.

    Effort is environment steps where the job's rounds are in steps, else cost: device seconds / M.
    `reached` is what the line has come to since. `score` is the mean of `episodes` episodes whose
    variance is `variance`."""

    agent: str
    before: float
    after: float
    score: float
    reached: float = 0.0
    episodes: int = 1
    variance: float = 0.0


@dataclass(frozen=True, slots=True)
class Front:
    """How far the best lines of a board have come.

    reached     the greatest effort of a line that has had the best score, or one that differs by
                noise
    best_since  the least effort with which such a score was reached
    """

    reached: float
    best_since: float

    def stagnates(self, rules: Rules) -> bool:
        """Whether one of them has doubled that effort and has come no further, after the first
        milestone."""
        return self.reached >= 2 * max(self.best_since, milestone(rules))


def peer_scores(own: LineRound, others: Sequence[LineRound]) -> tuple[float, ...]:
    """The scores of `own`'s rung, its own first: of every other line that has come as far, its
    round nearest to here. They are `shrunken`.

    A line that was given up before does not count: losers of lower rungs would make everyone look
    good. `others` come with the greatest effort first. Where too few lines have come as far, those
    below are taken, the nearest first: a line that leads the field alone is held against what
    others reached with less training, else it could never be replaced; a slow starter is never held
    against those that had more."""
    # As it is stored it knows of its episodes.
    own = next((each for each in others if (each.agent, each.score) == (own.agent, own.score)), own)
    nearest: dict[str, LineRound] = {}
    below: dict[str, LineRound] = {}
    for other in others:
        if other.after > own.after * SAME_TO or other.agent == own.agent:
            continue
        if other.after < own.after * SAME_FROM and len(nearest) + len(below) + 1 >= MINIMUM_PEERS:
            break
        if (
            max(other.reached, other.after) < own.after * AS_FAR
            or other.after < own.after * SAME_FROM
        ):
            below.setdefault(other.agent, other)
        elif other.agent not in nearest or _distance(own, other) < _distance(
            own, nearest[other.agent]
        ):
            nearest[other.agent] = other
    rounds = [own, *nearest.values()]
    missing = max(0, MINIMUM_PEERS - len(rounds))
    rounds += [each for name, each in below.items() if name not in nearest][:missing]
    return shrunken(rounds)


class Rungs(Mapping[str, tuple[float, ...]]):
    """Name of an agent whose last round was judged → its `peer_scores`, calculated when asked for:
    of a thousand waiting agents a proposal looks at a few."""

    def __init__(self, own: Sequence[LineRound], near: Mapping[float, Sequence[LineRound]]) -> None:
        """`near`: effort of an agent → the rounds that ended about there, those of the greatest
        effort first."""
        self._own, self._near = {each.agent: each for each in own}, near

    def __getitem__(self, agent: str) -> tuple[float, ...]:
        own = self._own[agent]
        return peer_scores(own, self._near[own.after])

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def shrunken_scores(self) -> dict[str, float]:
        """The agents' own scores, where they may differ from what was measured: rounds had unequal
        episodes."""
        episodes = {each.episodes for rounds in self._near.values() for each in rounds}
        return {agent: scores[0] for agent, scores in self.items()} if len(episodes) > 1 else {}


def shrunken(rounds: Sequence[LineRound]) -> tuple[float, ...]:
    """The scores of a rung, each drawn to their mean by as much as its episodes leave open
    (`posterior_means`); as they are where all had equally many, which leaves their order as it
    is."""
    scores, episodes = [each.score for each in rounds], [each.episodes for each in rounds]
    if len(set(episodes)) == 1:
        return tuple(scores)
    return posterior_means(scores, episodes, [each.variance for each in rounds])


def is_at_bottom(score: float, peers: Sequence[float], fraction: float) -> bool:
    """Whether `score`, one of `peers`, is among the worst `fraction` of them.

    Only what is strictly worse than the worst of the others counts: equal agents never replace one
    another, and the best always stays."""
    if len(peers) < MINIMUM_PEERS:
        return False
    replaced = min(math.floor(fraction * len(peers)), len(peers) - 1)
    return score < sorted(peers)[replaced]


def fraction_at_stake(rules: Rules, curve: Sequence[LineRound], budget_used: float = 1.0) -> float:
    """The part of its rung that an agent has to leave behind to go on; `curve` is its last judged
    rounds, oldest first.

    None while the job is `EARLY`. Then the job's `replaced_fraction` each time that its line has
    trained for another whole round: members share the seconds of a timed round, and an agent that
    is judged after each small part of one is judged before it has learned anything. With adaptive
    rounds it is half where the line has passed a milestone since. Milestones are efforts that
    double, as in asynchronous successive halving (Li et al. 2020, arXiv:1810.05934, algorithm 2
    with eta = 2), and as there no agent waits: an agent is held against those that have come so far
    by now. Different from there, a stopped agent is not promoted later: its place goes to another
    agent."""
    if not curve:
        return rules.replaced_fraction
    before, after = curve[-2].after if len(curve) > 1 else curve[-1].before, curve[-1].after
    rounds = _whole_rounds(after, rules)
    if rounds == _whole_rounds(before, rules) or (budget_used < EARLY and rounds < ENOUGH_ROUNDS):
        return 0.0
    if not (rules.adaptive_rounds and _passes_milestone(before, after, rules)):
        return rules.replaced_fraction
    return max(HALVING, rules.replaced_fraction)


def _distance(own: LineRound, other: LineRound) -> float:
    return abs(other.after - own.after)


def _whole_rounds(effort: float, rules: Rules) -> int:
    return int(effort / milestone(rules))


def _passes_milestone(before: float, after: float, rules: Rules) -> bool:
    """Whether the greatest milestone below the effort is another one than before.

    Milestones are the length of a round times the powers of two from one on. Members share the
    seconds of a pod, so where rounds are timed the first one is several rounds away: what promises
    well is seldom known before."""
    length = milestone(rules)
    return after >= length and (before < length or _power(after / length) > _power(before / length))


def milestone(rules: Rules) -> float:
    """The first milestone: the effort of a whole round."""
    return rules.round_env_steps or rules.round_time_s * AS_FAR


def _power(ratio: float) -> int:
    # exact at the powers of two, where a logarithm may round either way
    return math.frexp(ratio)[1]
