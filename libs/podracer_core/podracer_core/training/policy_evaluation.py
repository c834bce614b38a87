"""The evaluation of a cohort's policies that come from another process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from podracer_core.algorithms import CohortConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments import (
    VecEnvironment,
    evaluates_alike,
    evaluation_device,
    make_vec_environment,
)
from podracer_core.errors import InvalidInput
from podracer_core.evaluate import EvaluationResult
from podracer_core.networks import Actor
from podracer_core.training.evaluation_backend import EvaluationOrder, InProcessBackend

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
