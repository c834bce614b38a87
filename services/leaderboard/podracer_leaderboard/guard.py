"""Checks a generator's proposals before they are carried out, and replaces a generator that
fails."""

from __future__ import annotations

import functools
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from podracer_core.errors import InvalidInput
from podracer_core.evolution.agents import (
    Action,
    Agent,
    Cohort,
    CohortRequest,
    NewAgent,
    Population,
    Retirement,
    Start,
    State,
)
from podracer_core.evolution.generator import Generator
from podracer_core.evolution.search_space import SearchSpace, shape_of, weights_shape
from podracer_leaderboard.competition import Competition

logger = logging.getLogger(__name__)

DEADLINE_S = 10.0
"""The deadline of a generator: a pod and all other writes into the database wait for its answer."""

MAX_REASON = 1000
"""The most characters in the reason of a new agent."""

MAX_GENERATION = 1 << 31

MAX_DETAIL = 10_000
"""The most characters of a traceback; the last ones are kept."""

_PARENTS = {Start.FRESH: (0, 0), Start.COPY: (1, 1), Start.NOISE: (1, 1), Start.FUSE: (2, 64)}


@dataclass(frozen=True, slots=True)
class GeneratorProblem:
    """The reason why a generator's answer was not used: one sentence, and its traceback if it
    raised."""

    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """The agents that may train, and those that may have children, by name."""

    waiting: Mapping[str, Agent]
    donors: Mapping[str, Agent]


_late: dict[type[Generator], threading.Thread] = {}
"""Calls that have not returned in time: such a thread cannot be ended, but no further one is
started while it lives."""


def propose(
    competition: Competition,
    population: Population,
    request: CohortRequest,
    chance: Callable[[], Random],
) -> tuple[Cohort, GeneratorProblem | None]:
    """The proposal of the job's generator; if that fails, the one of the scheduler's own generator,
    and the problem.

    `chance` gives the same random stream each time. An error of the scheduler's own generator is
    raised."""
    stand_in = competition.stand_in(competition.space, competition.rules)
    if competition.generator is competition.stand_in:
        return stand_in.propose(population, request, chance()), None
    answer = _in_time(
        competition, functools.partial(_ask, competition, population, request, chance())
    )
    if isinstance(answer, Cohort):
        return answer, None
    logger.warning("%s", answer.message)
    return stand_in.propose(population, request, chance()), answer


def _in_time(
    competition: Competition, ask: Callable[[], Cohort | GeneratorProblem]
) -> Cohort | GeneratorProblem:
    """The generator's answer in its own thread, or the problem that it gave none within
    DEADLINE_S."""
    generator = competition.generator
    if generator in _late and _late[generator].is_alive():
        return _problem(competition, "still has not answered an earlier call")
    answers: list[Cohort | GeneratorProblem] = []
    thread = threading.Thread(
        target=lambda: answers.append(ask()), name=competition.rules.generator, daemon=True
    )
    thread.start()
    thread.join(DEADLINE_S)
    if thread.is_alive():
        _late[generator] = thread
        return _problem(competition, f"gave no answer within {DEADLINE_S:g} s")
    return answers[0] if answers else _problem(competition, "ended without an answer")


def _ask(
    competition: Competition, population: Population, request: CohortRequest, random: Random
) -> Cohort | GeneratorProblem:
    try:
        cohort = competition.generator(competition.space, competition.rules).propose(
            population, request, random
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything, its job goes on without it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return _problem(
            competition,
            f"raised {_said(error)} ({Path(frame.filename).name}, line {frame.lineno})",
            error,
        )
    try:
        check_cohort(cohort, competition, population, request)
    except InvalidInput as error:
        return _problem(competition, f"gave an invalid proposal: {error.message:.500}")
    except Exception as error:  # noqa: BLE001 - nor may what it returned be of any use
        return _problem(competition, f"gave an unreadable proposal: {_said(error)}", error)
    return cohort


def _problem(
    competition: Competition, what: str, error: BaseException | None = None
) -> GeneratorProblem:
    stand_in = competition.stand_in.__name__
    message = f"generator {competition.rules.generator} {what}; {stand_in} proposes in its place"
    detail = "".join(traceback.format_exception(error)) if error else ""
    return GeneratorProblem(_storable(message), _storable(detail[-MAX_DETAIL:]))


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error!s:.500}"
    except Exception:  # noqa: BLE001 - its `__str__` is the package's own, too
        return type(error).__name__


def _storable(text: str) -> str:
    """`text` without characters that messages and databases refuse."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def check_cohort(
    cohort: Cohort, competition: Competition, population: Population, request: CohortRequest
) -> None:
    """Raises InvalidInput with the first mistake, unless `cohort` can be carried out as it is."""
    if not isinstance(cohort, Cohort):
        raise InvalidInput(f"it returned {cohort!r:.200}, expected a Cohort")
    if not isinstance(cohort.finished, bool):
        raise InvalidInput(f"finished is {cohort.finished!r:.100}, expected a bool")
    if (
        not cohort.members
        and not cohort.finished
        and _is_standstill(competition, population, request)
    ):
        raise InvalidInput(
            "it has no members, although no agent trains and some could: the job would wait forever"
        )
    known = _Known(_by_name(population.waiting), _by_name(population.donors))
    _check_created(cohort, competition, population, known)
    _check_members(cohort, known, request)


def _is_standstill(
    competition: Competition, population: Population, request: CohortRequest
) -> bool:
    """Whether the job would stand still without an agent for this pod: a proposal depends on the
    population only."""
    if any(agent.state is State.TRAINING for agent in population.agents):
        return False
    has_room = len(population.alive) < competition.rules.population
    could_train = [agent.algorithm for agent in population.waiting] + (
        list(competition.space.shares) * has_room
    )
    return any(map(request.accepts, could_train))


def _check_created(
    cohort: Cohort, competition: Competition, population: Population, known: _Known
) -> None:
    for index, new in enumerate(cohort.created):
        try:
            _check_new(new, competition.space, known)
        except InvalidInput as error:
            raise InvalidInput(f"created[{index}]: {error.message}") from error
    if len({id(new) for new in cohort.created}) < len(cohort.created):
        raise InvalidInput("created holds the same new agent twice")
    replaced = [new.replaced.name for new in cohort.created if new.replaced is not None]
    if len(set(replaced)) < len(replaced):
        raise InvalidInput(f"two new agents replace the same one: {', '.join(sorted(replaced))}")
    _check_retired(cohort, known, replaced)
    leaving = len(replaced) + len(cohort.retired)
    alive = len(population.alive) - leaving + len(cohort.created)
    # users' forks are beyond the population
    most = max(competition.rules.population, len(population.alive))
    if alive > most:
        raise InvalidInput(
            f"{alive} agents would be alive, expected at most the population of {most}"
        )


def _check_retired(cohort: Cohort, known: _Known, replaced: Sequence[str]) -> None:
    for index, each in enumerate(cohort.retired):
        if not isinstance(each, Retirement) or not _may_end(each.agent, known):
            raise InvalidInput(
                f"retired[{index}] is {each!r:.200}, expected an agent that waits and is not pinned"
            )
        if (
            not isinstance(each.reason, str)
            or len(each.reason) > MAX_REASON
            or _storable(each.reason) != each.reason
        ):
            raise InvalidInput(
                f"retired[{index}]: reason is {each.reason!r:.100}, expected plain characters"
            )
    names = [*replaced, *(each.agent.name for each in cohort.retired)]
    if len(set(names)) < len(names):
        raise InvalidInput("an agent is retired twice, or retired and replaced")


def _check_new(new: NewAgent, space: SearchSpace, known: _Known) -> None:
    if not isinstance(new, NewAgent):
        raise InvalidInput(f"is {new!r:.200}, expected a NewAgent")
    if not isinstance(new.action, Action) or new.action is Action.CONTINUE:
        raise InvalidInput(
            f"action is {new.action!r}, expected EXPLOIT or FRESH: only living agents continue"
        )
    if new.algorithm not in space.shares:
        raise InvalidInput(
            f"algorithm is {new.algorithm!r}, expected one of {', '.join(space.shares)}"
        )
    if (
        not isinstance(new.reason, str)
        or len(new.reason) > MAX_REASON
        or _storable(new.reason) != new.reason
    ):
        raise InvalidInput(
            f"reason is {new.reason!r:.100}, expected at most {MAX_REASON} plain characters"
        )
    if not isinstance(new.generation, int) or not 0 <= new.generation <= MAX_GENERATION:
        raise InvalidInput(f"generation is {new.generation!r:.100}, expected 0 or more")
    parents = [each.hyperparameters for each in new.parents if isinstance(each, Agent)]
    space.check(new.algorithm, new.hyperparameters, parents)
    if new.shape != shape_of(new.algorithm, new.hyperparameters):
        raise InvalidInput(
            "its shape is not that of its hyperparameters, expected shape_of(algorithm, "
            "hyperparameters)"
        )
    if new.replaced is not None and not _may_end(new.replaced, known):
        raise InvalidInput(
            f"replaces {_name(new.replaced)}, expected an agent that waits and is not pinned"
        )
    _check_start(new, known)


def _check_start(new: NewAgent, known: _Known) -> None:
    if not isinstance(new.start, Start):
        raise InvalidInput(f"start is {new.start!r:.100}, expected a Start")
    least, most = _PARENTS[new.start]
    if not least <= len(new.parents) <= most:
        raise InvalidInput(f"start is {new.start!r} with {len(new.parents)} parents")
    if not isinstance(new.noise_scale, int | float) or not (0 < new.noise_scale < float("inf")) == (
        new.start is Start.NOISE
    ):
        raise InvalidInput(
            f"noise_scale is {new.noise_scale!r} with start {new.start}, expected above 0 for "
            "NOISE only"
        )
    for parent in new.parents:
        if not _is_one_of(parent, known.donors):
            raise InvalidInput(
                f"has the parent {_name(parent)}, expected one of the population's donors"
            )
        weights = weights_shape(new.algorithm, new.hyperparameters)
        if weights_shape(parent.algorithm, parent.hyperparameters) != weights:
            raise InvalidInput(
                f"is not of the network of its parent {_name(parent)}, whose weights cannot fit"
            )
    if new.start is Start.FUSE and len({parent.shape for parent in new.parents}) > 1:
        raise InvalidInput("has parents of different shapes, expected one shape for FUSE")
    if new.start is Start.FUSE and len({parent.name for parent in new.parents}) < len(new.parents):
        raise InvalidInput("has the same parent twice")


def _check_members(cohort: Cohort, known: _Known, request: CohortRequest) -> None:
    members = cohort.members
    if cohort.finished and members:
        raise InvalidInput("it is finished and has members, expected one of the two")
    created = {id(new) for new in cohort.created}
    leaving = {new.replaced.name for new in cohort.created if new.replaced is not None}
    leaving |= {each.agent.name for each in cohort.retired}
    for index, member in enumerate(members):
        if isinstance(member, NewAgent):
            sound = id(member) in created
        else:
            sound = _is_one_of(member, known.waiting) and member.name not in leaving
        if not sound:
            raise InvalidInput(
                f"members[{index}] is {_name(member)}, expected one that waits and stays, or is "
                "created"
            )
        if not request.accepts(member.algorithm):
            raise InvalidInput(
                f"members[{index}] is of {member.algorithm!r}, which the pod cannot train"
            )
    if len({id(m) if isinstance(m, NewAgent) else m.name for m in members}) < len(members):
        raise InvalidInput("members holds the same agent twice")
    if len({member.shape for member in members}) > 1:
        raise InvalidInput(
            "members are of different shapes, expected one: the shared hyperparameters differ"
        )
    if members and len(members) > request.places_for(members[0].shape):
        raise InvalidInput(
            f"{len(members)} members, expected at most {request.places_for(members[0].shape)}"
        )


def _by_name(agents: Iterable[Agent]) -> Mapping[str, Agent]:
    return {agent.name: agent for agent in agents}


def _is_one_of(agent: object, known: Mapping[str, Agent]) -> bool:
    return isinstance(agent, Agent) and known.get(agent.name) == agent


def _may_end(agent: object, known: _Known) -> bool:
    return isinstance(agent, Agent) and _is_one_of(agent, known.waiting) and not agent.pinned


def _name(agent: object) -> str:
    return agent.name if isinstance(agent, Agent) else f"{agent!r:.100}"
