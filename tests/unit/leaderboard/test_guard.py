"""A generator that raises, or proposes what cannot be: the scheduler's own one answers, and the job
hears why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from podracer_core.errors import InvalidInput
from podracer_core.evolution import (
    Action,
    Cohort,
    CohortRequest,
    Generator,
    LowerBoundUpdater,
    NewAgent,
    Population,
    Retirement,
    Rules,
    Start,
    State,
    Tournament,
    shape_of,
)
from podracer_leaderboard import guard
from podracer_leaderboard.competition import Competition
from support.evolution import WIDE, make_agent, make_population

RULES = Rules(population=8, leaderboard_size=4, generator="theirs")
EIGHT = [make_agent(number, float(number)) for number in range(1, 9)]
STRANGER = make_agent(20, 1.0)
TRAINING = replace(EIGHT[7], state=State.TRAINING)
PINNED = EIGHT[2] = replace(EIGHT[2], pinned=True)
POPULATION = make_population([*EIGHT[:7], TRAINING])
REQUEST = CohortRequest(4, algorithms=frozenset({"ppo"}))
DEFAULTS = EIGHT[0].hyperparameters


def child(**changes: Any) -> NewAgent:
    """A sound child of agent 7 in the place of agent 1."""
    new = NewAgent(
        Action.EXPLOIT,
        "ppo",
        DEFAULTS,
        EIGHT[0].shape,
        "because",
        Start.COPY,
        (EIGHT[6],),
        replaced=EIGHT[0],
    )
    return replace(new, **changes)


def with_values(new: NewAgent, **values: Any) -> NewAgent:
    hyperparameters = {**new.hyperparameters, **values}
    return replace(new, hyperparameters=hyperparameters, shape=shape_of("ppo", hyperparameters))


def created(*new: Any) -> Cohort:
    return Cohort(tuple(new), tuple(new))


CHILD = child()
OTHER_NETWORK = {**DEFAULTS, "hidden_sizes": (32, 32)}
OTHER_HORIZON = {**DEFAULTS, "horizon": 128}
NONSENSE: dict[str, tuple[Any, str]] = {
    "no cohort": ([], "it returned [], expected a Cohort"),
    "too many members": (Cohort(tuple(EIGHT[:5])), "5 members, expected at most 4"),
    "a member twice": (Cohort((EIGHT[0], EIGHT[0])), "the same agent twice"),
    "an unknown member": (
        Cohort((STRANGER,)),
        "members[0] is projects/p/jobs/j/agents/a0020, expected one that waits",
    ),
    "one that trains": (
        Cohort((TRAINING,)),
        "members[0] is projects/p/jobs/j/agents/a0008, expected one that waits",
    ),
    "one that is replaced": (
        Cohort((CHILD, EIGHT[0]), (CHILD,)),
        "members[1] is projects/p/jobs/j/agents/a0001",
    ),
    "new but not created": (Cohort((CHILD,)), "members[0] is NewAgent"),
    "a string": (Cohort(("a0001",)), "members[0] is 'a0001'"),  # type: ignore[arg-type]
    "members of two shapes": (
        created(
            CHILD,
            child(
                hyperparameters=OTHER_HORIZON,
                shape=shape_of("ppo", OTHER_HORIZON),
                replaced=EIGHT[1],
            ),
        ),
        "members are of different shapes",
    ),
    "finished with members": (Cohort((EIGHT[0],), finished=True), "it is finished and has members"),
    "too many alive": (
        created(child(replaced=None)),
        "9 agents would be alive, expected at most the population of 8",
    ),
    "one that is retired": (
        Cohort((EIGHT[0],), retired=(Retirement(EIGHT[0], ""),)),
        "members[0] is projects",
    ),
    "retired and replaced": (
        Cohort((CHILD,), (CHILD,), retired=(Retirement(EIGHT[0], ""),)),
        "an agent is retired twice, or retired and replaced",
    ),
    "a stranger retired": (
        Cohort((EIGHT[1],), retired=(Retirement(STRANGER, ""),)),
        "retired[0] is Retirement",
    ),
    "retired without a reason": (
        Cohort((EIGHT[1],), retired=(Retirement(EIGHT[0], None),)),
        "retired[0]: reason",
    ),  # type: ignore[arg-type]
    "one replaced twice": (created(CHILD, child()), "two new agents replace the same one"),
    "created twice": (Cohort((CHILD,), (CHILD, CHILD)), "the same new agent twice"),
    "no new agent": (Cohort((), (EIGHT[0],)), "created[0]: is Agent"),  # type: ignore[arg-type]
    "continue": (created(child(action=Action.CONTINUE)), "expected EXPLOIT or FRESH"),
    "an unknown algorithm": (
        created(child(algorithm="dqn")),
        "algorithm is 'dqn', expected one of ppo, a2c",
    ),
    "an algorithm that the pod cannot train": (
        created(NewAgent(Action.FRESH, "a2c", {}, EIGHT[0].shape, "", replaced=EIGHT[0])),
        "hyperparameters of a2c are missing or unknown: activation, ",
    ),
    "an incomplete one": (
        created(child(hyperparameters={k: v for k, v in DEFAULTS.items() if k != "gamma"})),
        "created[0]: hyperparameters of ppo are missing or unknown: gamma",
    ),
    "an unknown hyperparameter": (
        created(with_values(CHILD, gama=0.9)),
        "missing or unknown: gama",
    ),
    "out of its bounds": (
        created(with_values(CHILD, learning_rate=7.0)),
        "learning_rate must be a number from",
    ),
    "not a number": (
        created(with_values(CHILD, learning_rate=float("nan"))),
        "learning_rate must be a number from",
    ),
    "out of the search": (
        created(with_values(CHILD, learning_rate=0.5)),
        "learning_rate is 0.5, which is not inside",
    ),
    "not searched": (
        created(with_values(CHILD, epochs=9)),
        "epochs is 9, expected its default 4: not searched",
    ),
    "another type": (
        created(with_values(CHILD, learning_rate=1)),
        "is 1 of type int, expected float",
    ),
    "a list of widths": (
        created(with_values(CHILD, hidden_sizes=[32, 32])),
        "of type list, expected tuple",
    ),
    "another shape than its own": (
        created(child(shape=("ppo", ()))),
        "its shape is not that of its hyperparameters",
    ),
    "a reason that is none": (created(child(reason=None)), "reason is None"),
    "a reason that no message takes": (created(child(reason="\ud800")), "reason is '\\ud800'"),
    "a start by its name": (created(child(start="copy")), "start is 'copy', expected a Start"),
    "an action by its name": (created(child(action="exploit")), "action is 'exploit'"),
    "a generation beyond all numbers": (created(child(generation=1 << 80)), "expected 0 or more"),
    "an end that is none": (Cohort(finished="no"), "finished is 'no', expected a bool"),  # type: ignore[arg-type]
    "a negative generation": (
        created(child(generation=-1)),
        "generation is -1, expected 0 or more",
    ),
    "replaces who trains": (
        created(child(replaced=TRAINING)),
        "a0008, expected an agent that waits",
    ),
    "replaces a pinned one": (
        created(child(replaced=PINNED)),
        "expected an agent that waits and is not pinned",
    ),
    "retires a pinned one": (
        Cohort((EIGHT[1],), retired=(Retirement(PINNED, ""),)),
        "expected an agent that waits and is not pinned",
    ),
    "replaces by name": (
        created(child(replaced="a0001")),
        "replaces 'a0001', expected an agent that waits",
    ),
    "a copy without a parent": (
        created(child(parents=())),
        "start is <Start.COPY: 'copy'> with 0 parents",
    ),
    "fresh with a parent": (created(child(start=Start.FRESH)), "with 1 parents"),
    "an unknown start": (created(child(start="clone")), "start is 'clone'"),
    "a fusion of one": (created(child(start=Start.FUSE)), "with 1 parents"),
    "a fusion with itself": (
        created(child(start=Start.FUSE, parents=(EIGHT[6], EIGHT[6]))),
        "the same parent twice",
    ),
    "noise without a scale": (created(child(start=Start.NOISE)), "noise_scale is 0.0"),
    "a scale without noise": (created(child(noise_scale=0.1)), "noise_scale is 0.1"),
    "an unknown parent": (
        created(child(parents=(STRANGER,))),
        "has the parent projects/p/jobs/j/agents/a0020",
    ),
    "a parent that was made up": (
        created(child(parents=(replace(EIGHT[6], score=9.0),))),
        "has the parent",
    ),
    "weights that cannot fit": (
        created(child(hyperparameters=OTHER_NETWORK, shape=shape_of("ppo", OTHER_NETWORK))),
        "is not of the network of its parent",
    ),
    "something else entirely": (Cohort((), 7), "gave an unreadable proposal: TypeError"),  # type: ignore[arg-type]
}


def asked(answer: Callable[[], Any]) -> tuple[Cohort, guard.GeneratorProblem | None]:
    class Theirs(Generator):
        def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
            random.random()  # what it draws does not change what stands in for it
            cohort: Cohort = answer()
            return cohort

    competition = Competition(RULES, WIDE, Theirs, Tournament, LowerBoundUpdater(RULES))
    return guard.propose(competition, POPULATION, REQUEST, lambda: Random(7))


def of_the_tournament() -> Cohort:
    return Tournament(WIDE, RULES).propose(POPULATION, REQUEST, Random(7))


@pytest.mark.parametrize("case", NONSENSE)
def test_what_cannot_be_is_not_carried_out(case):
    cohort, expected = NONSENSE[case]
    answer, problem = asked(lambda: cohort)
    assert problem is not None
    assert expected in problem.message
    assert problem.message.startswith(
        (
            "generator theirs gave an invalid proposal: ",
            "generator theirs gave an unreadable proposal: ",
        )
    )
    assert problem.message.endswith("; Tournament proposes in its place")
    assert answer == of_the_tournament()


def test_one_that_raises_is_named_with_what_and_where():
    def broken() -> Cohort:
        raise ZeroDivisionError("division by zero")

    answer, problem = asked(broken)
    assert answer == of_the_tournament()
    assert problem is not None
    assert problem.message.startswith(
        "generator theirs raised ZeroDivisionError: division by zero (test_guard.py, line "
    )
    assert problem.detail.startswith("Traceback")
    assert "in broken" in problem.detail


def test_one_that_cannot_even_be_made_is_stood_in_for():
    class Theirs(Tournament):
        def __init__(self, *arguments: Any) -> None:
            raise OSError("no such file")

    competition = Competition(RULES, WIDE, Theirs, Tournament, LowerBoundUpdater(RULES))
    answer, problem = guard.propose(competition, POPULATION, REQUEST, lambda: Random(7))
    assert answer == of_the_tournament()
    assert problem is not None
    assert "raised OSError: no such file" in problem.message


def test_one_that_does_not_return_blocks_no_call_and_is_asked_again_once_it_has(monkeypatch):
    monkeypatch.setattr(guard, "DEADLINE_S", 0.1)
    returns, calls = threading.Event(), []

    class Theirs(Tournament):
        def propose(self, population: Population, request: CohortRequest, random: Random) -> Cohort:
            calls.append(request)
            returns.wait(30)
            return super().propose(population, request, random)

    competition = Competition(RULES, WIDE, Theirs, Tournament, LowerBoundUpdater(RULES))

    def ask() -> str:
        answer, problem = guard.propose(competition, POPULATION, REQUEST, lambda: Random(7))
        assert answer == of_the_tournament()
        return "" if problem is None else problem.message

    assert "gave no answer within 0.1 s" in ask()
    assert "still has not answered an earlier call" in ask()
    assert len(calls) == 1
    returns.set()
    for thread in threading.enumerate():
        if thread.name == RULES.generator:
            thread.join(30)
    assert not ask()


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nor can this be said")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_Unspeakable(), "raised _Unspeakable ("),
        (OSError("\udcff and \0"), r"raised OSError: \udcff and \0 ("),
        (SystemExit(3), "raised SystemExit: 3 ("),
    ],
)
def test_whatever_is_raised_can_be_told(error, expected):
    def broken() -> Cohort:
        raise error

    answer, problem = asked(broken)
    assert answer == of_the_tournament()
    assert problem is not None
    assert expected in problem.message
    assert (problem.message + problem.detail).encode()


def test_of_a_long_story_the_end_is_told():
    def broken() -> Cohort:
        raise ValueError("x" * 1_000_000)

    _, problem = asked(broken)
    assert problem is not None
    assert len(problem.message) < 1000
    assert len(problem.detail) <= guard.MAX_DETAIL


def test_no_members_may_be_proposed_only_where_that_will_change():
    competition = Competition(RULES, WIDE, Tournament, Tournament, LowerBoundUpdater(RULES))
    asleep, empty = make_population(EIGHT), make_population([])
    for population in (asleep, empty):
        with pytest.raises(InvalidInput, match="wait forever"):
            guard.check_cohort(Cohort(), competition, population, REQUEST)
        guard.check_cohort(Cohort(finished=True), competition, population, REQUEST)
        guard.check_cohort(
            Cohort(), competition, population, CohortRequest(4, algorithms=frozenset({"sac"}))
        )
    guard.check_cohort(Cohort(), competition, POPULATION, REQUEST)


FUSED = child(start=Start.FUSE, parents=(EIGHT[6], EIGHT[5]))
SOUND: dict[str, Cohort] = {
    "nothing": Cohort(),
    "the end": Cohort(finished=True),
    "who waits": Cohort(tuple(EIGHT[:4])),
    "a child": created(CHILD),
    "a fusion": created(FUSED),
    "noise": created(child(start=Start.NOISE, noise_scale=0.1)),
    "one that waits for its cohort": Cohort((EIGHT[1],), (CHILD,)),
    "from nothing": created(child(action=Action.FRESH, start=Start.FRESH, parents=())),
    "hyperparameters of another with new weights": created(child(start=Start.FRESH, parents=())),
    "another horizon": created(
        child(hyperparameters=OTHER_HORIZON, shape=shape_of("ppo", OTHER_HORIZON))
    ),
}


@pytest.mark.parametrize("case", SOUND)
def test_what_can_be_is_carried_out(case):
    answer, problem = asked(lambda: SOUND[case])
    assert problem is None
    assert answer is SOUND[case]


def test_a_member_limit_by_shape_holds():
    request = CohortRequest(4, limits={EIGHT[0].shape: 2})
    competition = Competition(RULES, WIDE, Tournament, Tournament, LowerBoundUpdater(RULES))
    with pytest.raises(InvalidInput, match="3 members, expected"):
        guard.check_cohort(Cohort(tuple(EIGHT[:3])), competition, POPULATION, request)
