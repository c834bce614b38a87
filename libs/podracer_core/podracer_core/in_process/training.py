"""`train`: one cohort in this process, until the target, a limit, a callback or the user ends it."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
from podracer_core.algorithms.registry import algorithm_class
from podracer_core.catalogue.algorithms import check_action_space
from podracer_core.catalogue.spaces import to_json
from podracer_core.checkpoint import Checkpoint
from podracer_core.collect import Collector
from podracer_core.environments.registry import require_device
from podracer_core.environments.spaces import from_gymnasium
from podracer_core.environments.vec_environment import VecEnvironment
from podracer_core.errors import PreconditionFailed
from podracer_core.evaluate.messages import result_to_json
from podracer_core.in_process.breeding import Values, first_members, replace_worst
from podracer_core.in_process.environments import Environment, find_source
from podracer_core.in_process.order import Order, check_order
from podracer_core.in_process.reporting import Callback, Look, ProgressLine, interrupts
from podracer_core.in_process.result import Result
from podracer_core.training.evaluation_backend import InProcessBackend
from podracer_core.training.plan import RoundPlan, Statistic
from podracer_core.training.session import TrainingSession
from podracer_core.training.sizes import usual_envs_per_member
from podracer_core.training.snapshots import Judgement, Snapshot
from podracer_core.training.source import InProcessSource

__all__ = ["train"]

_ROUNDS = 10  # of a training whose length is known, where members are replaced
_ROUND_S = 15.0  # of one whose length is not
_FEWEST_TO_REPLACE = 4  # members
_UNLIMITED_EPISODE_STEPS = 1000


def train(
    environment: Environment,
    algorithm: str = "ppo",
    *,
    members: int = 8,
    target: float | None = None,
    statistic: Statistic = "lower_bound",
    steps: int | None = None,
    seconds: float | None = None,
    episodes: int = 32,
    hyperparameters: Mapping[str, Any] | None = None,
    search: bool = False,
    environment_arguments: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    envs_per_member: int | None = None,
    seed: int = 0,
    device: str = "auto",
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Train `members` agents at once in this process, and return the best policy.

    environment      an id (`podracer environments` lists them, Gymnasium's work too), a class of `gymnasium.Env`, a
                     function that returns a new one at each call, or a class of `VecEnvironment`
    algorithm        a name of `podracer algorithms`
    target           greedy return to reach: `episodes` fresh episodes confirm it, by the lower end of the mean's 95 %
                     interval or, with statistic="mean", by the mean
    steps            environment steps of all members together; the last rollout is finished
    seconds          of training and evaluation
    hyperparameters  values by name, or ranges as in `search.space` of a job file: {"learning_rate": {"log_uniform":
                     [1e-4, 1e-2]}}. A searched one is each member's own
    search           search what the algorithm has ranges for, where members may differ
    seed             member m has `seed` + m
    device           "cpu", "cuda", "cuda:1"; "auto": a GPU where there is one and the environment can be on it
    callbacks        see `Callback`

    One of target, steps and seconds is required; whichever comes first ends it. Ctrl-C ends it too, with the result so
    far. With something to search and four members or more, training has rounds, after each of which the worst quarter
    goes on as mutated children of the best. Raises InvalidInput for arguments that cannot be right, and what the
    environment's code raises.
    """
    order = Order(
        find_source(environment, environment_arguments, max_episode_steps),
        algorithm, members, target, statistic, steps, seconds, episodes, envs_per_member, seed, device,
    )  # fmt: skip
    order = check_order(order, hyperparameters or {}, search)
    called = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    with ExitStack() as held:
        return _Training(order, called, progress, held).run()


@dataclass(frozen=True)
class _Found:
    """A policy, its evaluation, and the hyperparameters that it was searched with."""

    snapshot: Snapshot
    judgement: Judgement
    values: Values
    env_steps: int  # of its member


class _Training:
    """The rounds of a cohort."""

    def __init__(self, order: Order, callbacks: Sequence[Callback], progress: bool, held: ExitStack) -> None:
        """`held` closes the environments."""
        self._order, self._callbacks = order, callbacks
        self._line = ProgressLine(order) if progress else None
        source, self._device = order.source, require_device(order.source.device(order.device))
        horizon = order.info.defaults().get("horizon", 1) if "horizon" not in order.shared else order.shared["horizon"]
        envs = order.envs_per_member or usual_envs_per_member(
            order.algorithm, source.spec, self._device, order.members,
            env_steps=math.ceil((order.steps or 0) / order.members), horizon=horizon,
        )  # fmt: skip
        environment = source.open(order.members * envs, self._device)
        held.callback(environment.close)
        check_action_space(order.algorithm, from_gymnasium(environment.action_space))
        self._random = Random(order.seed)  # noqa: S311 - it draws hyperparameters
        self._values = first_members(order.ranges, order.info.defaults(), order.members, self._random)
        self._algorithm = self._cohort(environment)
        seeds = torch.tensor([order.seed + member for member in range(order.members)])
        self._source = InProcessSource(Collector(environment, self._algorithm.actor, seeds), self._algorithm)
        self._backend = InProcessBackend(
            lambda count, device: source.open(count, device, evaluation=True), all_alike=source.all_alike
        )
        held.callback(self._backend.close)
        self._spaces = [
            to_json(from_gymnasium(space)) for space in (environment.observation_space, environment.action_space)
        ]
        self._episode_steps = environment.max_episode_steps or _UNLIMITED_EPISODE_STEPS
        self._began_at = time.monotonic()
        self._interrupted = threading.Event()
        self._base = [0] * order.members  # environment steps before the present round
        self._looks: list[Look] = []
        self._best_mean = -math.inf
        self._found: _Found | None = None
        self._stopped_by = ""

    def run(self) -> Result:
        for callback in self._callbacks:
            callback.on_start(self._order)
        rounds = self._rounds()
        for number in range(rounds) if rounds else itertools.count():
            self._round(rounds - number if rounds else 0)
            if self._stopped_by:
                break
        result = self._result()
        for callback in self._callbacks:
            callback.on_end(result)
        return result

    def _rounds(self) -> int:
        """How many; 0: nobody knows. Without children one is enough."""
        if not self._replaces:
            return 1
        return _ROUNDS if self._order.steps or self._order.seconds else 0

    @property
    def _replaces(self) -> bool:
        return bool(self._order.ranges) and self._order.members >= _FEWEST_TO_REPLACE

    def _cohort(self, environment: VecEnvironment) -> Algorithm:
        members = tuple(
            MemberConfig(f"agent-{member}", self._order.seed + member, values)
            for member, values in enumerate(self._values)
        )
        cohort = CohortConfig(self._order.algorithm, members, self._order.shared)
        cls = algorithm_class(self._order.algorithm)
        return cls(cohort, environment.observation_space, environment.action_space, self._device)

    def _round(self, rounds_left: int) -> None:
        """Train; then let the best go on in place of the worst, if there is another round."""
        session = TrainingSession(
            self._algorithm,
            self._source,
            self._backend,
            self._plan(rounds_left),
            episode_steps=self._episode_steps,
            base_env_steps=self._base,
        )
        try:
            with interrupts(self._interrupted.set):
                while not (session.finished or self._stopped_by):
                    session.step()
                    self._tell(session)
                session.conclude(told_to_end=lambda: self._stopped_by in ("interrupt", "callback"))
            self._tell(session, last=True)
        except KeyboardInterrupt:  # once more, or from a callback: what is known by now will do
            self._stopped_by = "interrupt"
        outcomes = session.outcomes()
        self._keep(outcome.candidate for outcome in outcomes)
        self._base = [base + outcome.env_steps for base, outcome in zip(self._base, outcomes, strict=True)]
        if session.confirmed is not None:
            self._stopped_by = "target"
        elif rounds_left == 1 and not self._stopped_by:
            is_used = self._order.steps is not None and sum(self._base) >= self._order.steps
            self._stopped_by = "steps" if is_used else "seconds"
        if not self._stopped_by:
            replace_worst(self._algorithm, outcomes, self._values, self._order.ranges, self._random)

    def _plan(self, rounds_left: int) -> RoundPlan:
        order, duration_s, env_steps = self._order, None, 0
        if order.steps is not None:
            env_steps = max(1, math.ceil((order.steps - sum(self._base)) / order.members / rounds_left))
        if order.seconds is not None:
            left_s = max(0.1, order.seconds - self._elapsed_s)
            duration_s = left_s if order.steps is not None else left_s / rounds_left
        if not rounds_left:
            duration_s = _ROUND_S
        return RoundPlan(
            env_steps,
            duration_s,
            target=order.target,
            statistic=order.statistic,
            episodes=order.episodes,
            seed=order.seed,
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_at

    def _tell(self, session: TrainingSession, *, last: bool = False) -> None:
        """Looks go to the callbacks, and all to the line of progress."""
        selection = session.selection
        assert selection is not None, "there is a backend"
        for judged in _by_look(selection.take_news()):
            self._best_mean = max(self._best_mean, *(one.result.mean for one in judged))
            if judged[0].purpose == "progress":
                self._look(judged)
        if self._interrupted.is_set():
            self._stopped_by = "interrupt"
        elif not last and selection.confirmed is None and not bool(self._algorithm.active.any()):
            self._stopped_by = "diverged"
        if self._line is not None:
            steps = sum(self._base) + sum(session.moment().env_steps)
            is_over = last and bool(self._stopped_by or session.confirmed or self._rounds() == 1)
            self._line.show(self._elapsed_s, steps, self._best_mean, last=is_over)

    def _look(self, judged: Sequence[Judgement]) -> None:
        env_steps = sum(self._base) + sum(one.env_steps for one in judged)
        returns = tuple(one.result.mean for one in judged)
        look = Look(self._elapsed_s, env_steps, returns, self._best_mean)
        self._looks.append(look)
        if False in [callback.on_look(look) for callback in self._callbacks]:
            self._stopped_by = self._stopped_by or "callback"

    def _keep(self, judgements: Iterator[Judgement | None]) -> None:
        """The best of them, if it is better than what is known."""
        for judgement in judgements:
            if judgement is None or judgement.snapshot is None:
                continue
            if self._found is None or self._rank(judgement) > self._rank(self._found.judgement):
                member = judgement.member
                steps = self._base[member] + judgement.env_steps
                self._found = _Found(judgement.snapshot, judgement, self._values[member], steps)

    def _rank(self, judgement: Judgement) -> tuple[bool, float]:
        """A look of a few episodes is luckier than a full evaluation."""
        result = judgement.result
        score = result.mean if self._order.statistic == "mean" else result.lower_bound
        return result.episodes >= self._order.episodes, score

    def _result(self) -> Result:
        found, order = self._found, self._order
        if found is None:
            if self._stopped_by == "interrupt":
                raise KeyboardInterrupt
            raise PreconditionFailed(
                f"no member was evaluated: training ended by {self._stopped_by} before the first look"
            )
        hyperparameters = order.info.defaults() | dict(order.shared) | found.values
        metadata: dict[str, Any] = {
            "environment": order.source.spec.to_metadata(),
            "observation_space": self._spaces[0],
            "action_space": self._spaces[1],
            "algorithm": order.algorithm,
            "hyperparameters": {
                name: list(value) if isinstance(value, tuple) else value for name, value in hyperparameters.items()
            },
            "agent": f"agent-{found.judgement.member}",
            "seed": order.seed + found.judgement.member,
            "env_steps": found.env_steps,
            "evaluation": result_to_json(found.judgement.result),
            "looks": [look.to_json() for look in self._looks],
            "target": order.target,
        }
        groups = {
            group: {name: tensor.cpu() for name, tensor in tensors.items()}
            for group, tensors in found.snapshot.state.items()
        }
        return Result(Checkpoint(groups, metadata, {}), order.source, self._looks, self._stopped_by, order.target)


def _by_look(news: Sequence[Judgement]) -> list[list[Judgement]]:
    """Judgements of one look together, each full evaluation by itself."""
    together = itertools.groupby(news, lambda one: (one.purpose, one.confirm_time_s))
    return [list(judged) for _, judged in together]
