"""The evaluation of a round's policies: orders are submitted, and answers polled later.
`PolicyEvaluation` evaluates a cohort's policies that come from another process."""

from __future__ import annotations

import math
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from podracer_core.algorithms import CohortConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import (
    VecEnvironment,
    evaluates_alike,
    evaluation_device,
    make_vec_environment,
)
from podracer_core.errors import InvalidInput, TimeUp
from podracer_core.evaluate import EvaluationResult, Evaluator, evaluator_class
from podracer_core.networks import Actor
from podracer_core.training.plan import processor_seconds


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """Policies to evaluate.

    order_id         repeated in the answer
    members          of the policies, in the order of the actor's member axis
    actor            the policies; read at once, so it may continue learning
    seeds            one per episode
    first_episodes   to play first; 0: all
    admission_score  stop if the interval of the first ones lies below it; None: never
    required_score   the same for the target
    screening        a look during training, which a newer one may replace
    """

    order_id: int
    members: tuple[int, ...]
    actor: Actor
    seeds: tuple[int, ...]
    first_episodes: int = 0
    admission_score: float | None = None
    screening: bool = False
    required_score: float | None = None

    def leaves_open(self, first: EvaluationResult) -> bool:
        """Whether a policy's remaining episodes are worth their time after the first ones."""
        scores = (self.admission_score, self.required_score)
        return not any(first.upper_bound < score for score in scores if score is not None)


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """One result for each policy of the order; none if the order was lost or replaced by a newer
    one. `duration_s`: seconds of processors, without the start of environments; of a clock if the
    policies act on a GPU or `beside` it."""

    order_id: int
    results: tuple[EvaluationResult, ...]
    duration_s: float


class EvaluationBackend(ABC):
    """Evaluates orders in the order of submission, here or elsewhere.

    blocking         whether training waits meanwhile
    beside           whether looks take nothing from training: neither its processors nor its device
    evaluator_count  evaluators connected now
    left_s           the seconds that evaluations may still take; then their unfinished episodes are
                     left out
    """

    blocking: bool = False
    beside: bool = False
    evaluator_count: int = 0
    left_s: Callable[[], float] = staticmethod(lambda: math.inf)

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether an order would be accepted now."""

    @abstractmethod
    def submit(self, order: EvaluationOrder) -> None:
        """Submit an order. May block, and may return before the evaluation is done."""

    @abstractmethod
    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        """The arrived answers, in order; waits up to `timeout_s` for the first."""

    def close(self) -> None:  # noqa: B027 - not every backend has something to give back
        """Release resources; closing twice is harmless."""


class InProcessBackend(EvaluationBackend):
    """Evaluates in this process while training waits: each order on the device of its policies."""

    blocking = True

    def __init__(
        self,
        make_environment: Callable[[int, torch.device], VecEnvironment],
        *,
        evaluator: str = "",
        all_alike: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_environment(num_envs, device)` is called for each new size and device. `evaluator`
        is a name; `all_alike` and `check` are the evaluator's. Raises InvalidInput if there is no
        such evaluator."""
        self._make_environment, self._all_alike, self._check = make_environment, all_alike, check
        self._evaluator_class = evaluator_class(evaluator)
        self._evaluators: dict[torch.device, Evaluator] = {}
        self._starting_s = 0.0  # that environments took to start within the present order
        self._answers: list[EvaluationAnswer] = []

    @property
    def ready(self) -> bool:
        return True

    def submit(self, order: EvaluationOrder) -> None:
        clock = _clock(order.actor.device)
        start, self._starting_s = clock(), 0.0
        results: tuple[EvaluationResult, ...] = ()
        with suppress(TimeUp):
            results = evaluate_order(self._evaluator(order.actor.device), order)
        duration_s = max(0.0, clock() - start - self._starting_s)
        self._answers.append(EvaluationAnswer(order.order_id, results, duration_s))

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        for evaluator in self._evaluators.values():
            evaluator.close()

    def _evaluator(self, device: torch.device) -> Evaluator:
        if device not in self._evaluators:
            self._evaluators[device] = self._evaluator_class(
                lambda count: self._start(count, device),
                all_alike=self._all_alike,
                check=self._check_time,
            )
        return self._evaluators[device]

    def _check_time(self) -> None:
        self._check()
        if self.left_s() <= 0.0:
            raise TimeUp("the time for this evaluation is over")

    def _start(self, num_envs: int, device: torch.device) -> VecEnvironment:
        clock = _clock(device)
        start = clock()
        try:
            return self._make_environment(num_envs, device)
        finally:
            self._starting_s += clock() - start


def _clock(device: torch.device) -> Callable[[], float]:
    return processor_seconds if device.type == "cpu" else time.monotonic


def evaluate_order(evaluator: Evaluator, order: EvaluationOrder) -> tuple[EvaluationResult, ...]:
    """Evaluate all policies at once; those whose first episodes are inconclusive play all
    episodes."""
    if order.screening:
        return _complete(evaluator, evaluator.look(order.actor, order.seeds), order)
    first = order.first_episodes or len(order.seeds)
    results = _complete(evaluator, evaluator.evaluate(order.actor, order.seeds[:first]), order)
    # of an environment whose episodes are all alike
    if all(result.deterministic for result in results):
        return tuple(result.repeated(order.seeds) for result in results)
    rest = order.seeds[first:]
    open_ones = [i for i, result in enumerate(results) if rest and order.leaves_open(result)]
    if not open_ones:
        return results
    finished = list(results)
    with suppress(TimeUp):  # the first ones will do
        if len(open_ones) == len(results):
            return tuple(
                map(operator.add, results, evaluator.evaluate(order.actor, rest, first_row=first))
            )
        for index in open_ones:
            (more,) = evaluator.evaluate(order.actor.member(index), rest, first_row=first)
            finished[index] = results[index] + more
    return tuple(finished)


def _complete(
    evaluator: Evaluator, results: tuple[EvaluationResult, ...], order: EvaluationOrder
) -> tuple[EvaluationResult, ...]:
    if len(results) != len(order.members):
        message = (
            f"{type(evaluator).__name__} gave {len(results)} results for "
            f"{len(order.members)} policies"
        )
        raise InvalidInput(message, reason="BROKEN_EVALUATOR")
    return results


_MAX_ENVIRONMENTS = 1 << 20
_MOST_ACTORS = 8  # by number of members


class PolicyEvaluation:
    """Evaluates members of one cohort in its environment, in one thread."""

    def __init__(
        self,
        cohort: CohortConfig,
        environment: EnvironmentSpec,
        device: str,
        check: Callable[[], None] = lambda: None,
        evaluator: str = "",
    ) -> None:
        """`check` raises to cancel an evaluation; `evaluator` is a name. Raises UserCodeFailed if
        the environment does not start, and InvalidInput if there is no such evaluator."""
        self._cohort, self._spec = cohort, environment
        self._device = device = evaluation_device(environment, device)
        self._index = {member.name: index for index, member in enumerate(cohort.members)}
        with_spaces = self._make_environment(1)
        self._spaces = with_spaces.observation_space, with_spaces.action_space
        with_spaces.close()
        self._backend = InProcessBackend(
            lambda count, _: self._make_environment(count),
            evaluator=evaluator,
            all_alike=evaluates_alike(environment),
            check=check,
        )
        self._actors: dict[int, Actor] = {}

    def evaluate(
        self,
        agents: Sequence[str],
        tensors: Mapping[str, Tensor],
        seeds: Sequence[int],
        first_episodes: int,
        admission_score: float | None,
        screening: bool,
        required_score: float | None = None,
        timeout_s: float = math.inf,
    ) -> tuple[tuple[EvaluationResult, ...], float]:
        """A result for each agent, none if that takes longer than `timeout_s`, and the seconds that
        it took.

        Raises InvalidInput for other agents or tensors."""
        ends_at = time.monotonic() + timeout_s
        unknown = [agent for agent in agents if agent not in self._index]
        if unknown or not agents:
            raise InvalidInput(
                "not members of this session's cohort: "
                f"{', '.join(unknown) or 'no agent was named'}"
            )
        if len(agents) * len(seeds) > _MAX_ENVIRONMENTS:
            message = (
                f"{len(agents)} agents and {len(seeds)} episodes need more than "
                f"{_MAX_ENVIRONMENTS} environments"
            )
            raise InvalidInput(message, field="seeds")
        actor = self._actor(len(agents))
        actor.load_state(tensors)
        members = tuple(self._index[agent] for agent in agents)
        order = EvaluationOrder(
            0,
            members,
            actor,
            tuple(seeds),
            first_episodes,
            admission_score,
            screening,
            required_score,
        )
        self._backend.left_s = lambda: ends_at - time.monotonic()
        self._backend.submit(order)
        (answer,) = self._backend.poll()
        return answer.results, answer.duration_s

    @property
    def policy_sizes_bytes(self) -> list[int]:
        """The sizes of the tensors of the whole cohort's policies."""
        return [tensor.nbytes for tensor in self._actor(len(self._cohort.members)).state().values()]

    def close(self) -> None:
        """Close the environments."""
        self._backend.close()

    def _make_environment(self, count: int) -> VecEnvironment:
        return make_vec_environment(self._spec, count, self._device, evaluation=True)

    def _actor(self, members: int) -> Actor:
        if members not in self._actors:
            if len(self._actors) == _MOST_ACTORS:
                del self._actors[next(iter(self._actors))]
            # Actors differ in shape only by the number of members, so whose hyperparameters these
            # are does not matter.
            cohort = replace(self._cohort, members=self._cohort.members[:1] * members)
            self._actors[members] = algorithm_class(cohort.algorithm).make_actor(
                cohort, *self._spaces, self._device
            )
        return self._actors[members]
