"""`train`: one cohort in this process, until the target, a limit, a callback or the user ends it.
Its members differ in hyperparameters; children of the best replace the worst."""

from __future__ import annotations

import inspect
import itertools
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from podracer_core.algorithms import Algorithm, CohortConfig, MemberConfig
from podracer_core.catalogue import (
    EnvironmentSpec,
    Isolation,
    Range,
    check_action_space,
    check_observation_space,
    cut_warning,
    evaluation_steps,
    mutate,
    sample,
    to_json,
    treatment,
    unreachable,
)
from podracer_core.checkpoint import Checkpoint, require_spaces
from podracer_core.collect import Collector
from podracer_core.environments import (
    Inspection,
    IsolationProof,
    VecEnvironment,
    from_gymnasium,
    is_evaluated_beside,
    require_device,
)
from podracer_core.environments.processes import core_count
from podracer_core.errors import InvalidInput, PreconditionFailed, TimeUp
from podracer_core.evaluate import EvaluationResult, result_to_json
from podracer_core.in_process.order import (
    Environment,
    Order,
    check_order,
    find_source,
    unknown_argument,
)
from podracer_core.in_process.reporting import Breakages, Course, Look, interrupts
from podracer_core.in_process.result import Result, Start, begin_from, find_start
from podracer_core.random_numbers import member_seeds
from podracer_core.training import (
    EvaluationBackend,
    InProcessBackend,
    InProcessSource,
    Judgement,
    ProcessBackend,
    RoundPlan,
    Snapshot,
    Statistic,
    TrainingSession,
    fitting_algorithm,
    fitting_envs,
    fitting_horizon,
    inherit,
    usual_envs_per_member,
)

Values = dict[str, float]
"""A member's own hyperparameters that are searched."""

_REPLACED = 0.25
"""Part of the members: truncation selection of Jaderberg et al. 2017, Population Based Training,
arXiv:1711.09846."""


class Callback:
    """Hooks during training; override those that you need. The training loop calls them and waits.
    An exception ends training and is raised to the caller."""

    def on_start(self, run: Order) -> None:
        """Everything is set up. `run` describes the training: its members, hyperparameters and
        limits."""

    def on_look(self, look: Look) -> bool | None:
        """The members were evaluated. Returning False ends training."""
        return None

    def on_end(self, result: Result) -> None:
        """Training has ended with a result."""


Callbacks = Callback | Callable[[Look], object] | Sequence[Callback | Callable[[Look], object]]
"""One or several; a plain function is an `on_look`."""


class _Function(Callback):
    def __init__(self, call: Callable[[Look], object]) -> None:
        self._call = call

    def on_look(self, look: Look) -> bool | None:
        return False if self._call(look) is False else None


def as_callbacks(given: Callbacks | None) -> list[Callback]:
    """The callbacks of `train`. Raises InvalidInput for anything else."""
    every = given if isinstance(given, list | tuple) else () if given is None else (given,)
    found: list[Callback] = []
    for each in every:
        if isinstance(each, type) or not (isinstance(each, Callback) or callable(each)):
            problem = (
                "expected a podracer.Callback such as Patience(10), or a function of a "
                f"look; got {each!r:.100}"
            )
            raise InvalidInput.of("callbacks", problem)
        found.append(each if isinstance(each, Callback) else _Function(each))
    return found


def first_members(
    ranges: Mapping[str, Range], defaults: Mapping[str, float], count: int, random: Random
) -> list[Values]:
    """The first member has the defaults if the ranges contain them, as a sound agent; the others
    are drawn."""
    drawn = [
        {name: _number(sample(where, random)) for name, where in sorted(ranges.items())}
        for _ in range(count)
    ]
    first = {
        name: defaults[name] if where.contains(defaults[name]) else drawn[0][name]
        for name, where in ranges.items()
    }
    return [first, *drawn[1:]]


def replace_worst(
    algorithm: Algorithm,
    returns: Sequence[float],
    values: list[Values],
    ranges: Mapping[str, Range],
    random: Random,
) -> None:
    """Replace the worst quarter of the members, by their `returns` [M], by children of the best
    quarter: with the parent's weights and mutated hyperparameters. Changes `values` accordingly."""
    active = algorithm.active.tolist()
    order = sorted(
        range(len(returns)), key=lambda member: (active[member], returns[member]), reverse=True
    )
    count = int(_REPLACED * len(order))
    for member in order[-count:]:
        parent = order[int(random.random() * count)]
        inherit(
            algorithm, member, "copy", [(algorithm.member_state(parent), 1.0)], keep_optimizer=True
        )
        values[member] = {
            name: _number(mutate(where, values[parent][name], random))
            for name, where in sorted(ranges.items())
        }
        algorithm.set_hyperparameters(member, values[member])


def _number(value: object) -> float:
    assert isinstance(value, int | float), "members differ in real numbers only"
    return float(value)


_TIMES = 10  # that members are replaced in a training
_FEWEST_TO_REPLACE = 4  # members


class _Population:
    """What members differ in: their own `values` of the searched hyperparameters, now and before
    some were replaced."""

    def __init__(self, order: Order) -> None:
        self._ranges = order.ranges
        self._random = Random(order.seed)  # noqa: S311 - it draws hyperparameters
        self.values = first_members(order.ranges, order.defaults, order.members, self._random)
        # what `values` were up to a version of the policies
        self._former: list[tuple[int, list[Values]]] = []
        self._replaced_at = 0.0  # part of training when members were last replaced

    def values_of(self, snapshot: Snapshot) -> Values:
        """The values that the snapshot was trained with."""
        then = (values for version, values in self._former if snapshot.version <= version)
        return next(then, self.values)[snapshot.member]

    def replace(
        self, algorithm: Algorithm, returns: Sequence[float], part: float, version: int
    ) -> None:
        """Replace the worst members by children of the best, once per tenth of training, of which
        `part` is over."""
        if not self._ranges or len(self.values) < _FEWEST_TO_REPLACE:
            return
        if part - self._replaced_at >= 1.0 / _TIMES:
            self._replaced_at = part
            self._former.append((version, list(self.values)))
            replace_worst(algorithm, returns, self.values, self._ranges, self._random)


_WAIT_INTERVAL_S = 0.3
_USUAL_S = 150.0  # the assumed length of a training of unknown length
_WAITING = 0.5  # part of the time that the proof of isolation may take
_LEAST_S = 0.1


def train(
    environment: Environment,
    algorithm: str | None = None,
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
    isolation: Isolation = "",
    start: Start = None,
    envs_per_member: int | None = None,
    seed: int = 0,
    device: str = "auto",
    callbacks: Callbacks | None = (),
    progress: bool = True,
    **unknown: Any,
) -> Result:
    """Train `members` agents at once in this process, and return the best policy.

    environment      an id (`podracer environments` lists them, Gymnasium's work too), a class of
                     `gymnasium.Env`, a function that returns a new one at each call, or a class of
                     `VecEnvironment`
    algorithm        a name of `podracer algorithms`; by default that of `start`, else ppo
    target           greedy return to reach: `episodes` fresh episodes confirm it, by the lower end
                     of the mean's 95 % interval (of a wider one at each further attempt) or, with
                     statistic="mean", by the mean
    steps            environment steps of all members together; the last rollout is finished
    seconds          of training and evaluation, the start of the environments included
    hyperparameters  values by name, or ranges as in `search.space` of a job file: {"learning_rate":
                     {"log_uniform": [1e-4, 1e-2]}}. A searched one is each member's own
    search           search the hyperparameters that members may differ in, by the algorithm's own
                     ranges
    isolation        "process": each environment in a process of its own. Environments that share
                     state in one process are found out and isolated by themselves: with a warning,
                     and training begins again
    start            a `Result`, or the path of a saved one or of a job's checkpoint: every member
                     goes on from its weights, optimizer state and normalization, with its
                     hyperparameters unless others are given. Steps and seconds count anew,
                     `Result.env_steps` counts on. A file `….safetensors` has only what acting
                     needs: the critic and the optimizer begin anew
    seed             of everything random; members have seeds derived from it, so that no two seeds
                     share an agent
    device           "cpu", "cuda", "cuda:1"; "auto": a GPU if there is one and the environment
                     supports it
    callbacks        see `Callback`; a function is called with each look

    One of target, steps and seconds is required; the first one reached ends training. Ctrl-C ends
    it too, with the result so far. If nothing was evaluated by then, the last policy is returned,
    without an evaluation. With searched hyperparameters and at least four members, mutated children
    of the best replace the worst quarter after each tenth of training. Raises InvalidInput for
    invalid arguments, and the environment's own errors. An error after the first evaluation ends
    training with the result so far; see `Result.error`. Episodes whose world breaks are left out.
    The result's `warnings`, which are Python's warnings, too, say what it needs to be read rightly.
    """
    if unknown:
        raise unknown_argument(
            next(iter(unknown)), list(inspect.signature(train).parameters)[:-1], algorithm or "ppo"
        )
    beginning = find_start(start, algorithm)
    order = Order(
        find_source(environment, environment_arguments, max_episode_steps, isolation),
        algorithm or (beginning.metadata["algorithm"] if beginning else "ppo"),
        members, target, statistic, steps, seconds, episodes, envs_per_member, seed, device,
        start=beginning,
    )  # fmt: skip
    return _try_and_train(
        check_order(order, hyperparameters or {}, search), as_callbacks(callbacks), progress
    )


def _try_and_train(order: Order, called: Sequence[Callback], progress: bool) -> Result:
    began_at = time.monotonic()
    found = order.source.inspect()
    told = (*(found.warnings if found else ()), *unreachable(order.source.spec, order.target))
    for text in told:
        warnings.warn(text, stacklevel=3)
    if found is not None:
        first = (
            EnvironmentSpec.from_metadata(order.start.metadata["environment"])
            if order.start
            else found
        )
        source = replace(
            order.source,
            spec=replace(order.source.spec, observation_origin=first.observation_origin),
        )
        order = replace(order, source=source.overlapping() if found.waits else source)
    attempt = _Attempt(order, found, told, called, progress, began_at)
    proof = order.source.proof()
    with nullcontext() if proof is None else closing(proof):
        try:
            return attempt.run(proof)
        except InvalidInput:
            raise
        except Exception:  # of user code, perhaps because its environments disturb each other
            if proof is None or not proof.shares_state(
                deadline=began_at + (order.seconds or math.inf)
            ):
                raise
    warning = order.source.spec.shared_state_warning
    warnings.warn(warning, stacklevel=3)
    if order.seconds is not None:
        began_at = max(began_at, time.monotonic() + _LEAST_S - order.seconds)
    order = replace(order, source=order.source.isolated())
    return replace(attempt, order=order, told=(*told, warning), began_at=began_at).run()


class _SharedState(Exception):
    """What was collected is worth nothing."""


@dataclass(frozen=True)
class _Attempt:
    """What a training begins with. `found`: by inspection, if there was one; `told`: warnings so
    far."""

    order: Order
    found: Inspection | None
    told: Sequence[str]
    callbacks: Sequence[Callback]
    progress: bool
    began_at: float

    def run(self, proof: IsolationProof | None = None) -> Result:
        """Train."""
        with ExitStack() as held:
            return _Training(self, held, proof).run()


class _Training:
    """One cohort, from its first step to its result."""

    def __init__(self, attempt: _Attempt, held: ExitStack, proof: IsolationProof | None) -> None:
        """`held` closes the environments; `proof` begins beside training and ends before the first
        score."""
        order, self._attempt = attempt.order, attempt
        self._course = Course(order, attempt.progress)
        source, device = order.source, require_device(order.source.device(order.device))
        order, envs = _sized(replace(order, device=device), attempt.found)
        self._order = order
        opened_at = time.monotonic()
        self._interrupted = threading.Event()
        environment = source.open(
            order.members * envs,
            device,
            check_start=self._check_start,
            check=self._check_late,
        )
        self._start_s = (time.monotonic() - opened_at) / environment.num_envs  # of one environment
        held.callback(environment.close)
        self._proof = proof and proof.start()
        observed = environment.original_space or from_gymnasium(environment.observation_space)
        check_observation_space(order.algorithm, observed)
        check_action_space(order.algorithm, from_gymnasium(environment.action_space))
        self._population = _Population(order)
        self._seeds = member_seeds(order.seed, order.members)
        self._algorithm = self._cohort(environment, envs)
        if order.start is not None:
            require_spaces(order.start, environment, source.spec.name)
            begin_from(order.start, self._algorithm)
        self._base_env_steps = (
            0 if order.start is None else int(order.start.metadata.get("env_steps", 0))
        )
        collector = Collector(environment, self._algorithm.actor, torch.tensor(self._seeds))
        self._backend: EvaluationBackend = (
            ProcessBackend(self._algorithm.cohort, source.spec)
            if is_evaluated_beside(source.spec, device)
            else InProcessBackend(self._open_judged, all_alike=source.all_alike)
        )
        held.callback(self._backend.close)
        self._spaces = to_json(observed), to_json(from_gymnasium(environment.action_space))
        self._course.note(treatment(observed, source.spec.observation_origin))
        self._time_limit = environment.max_episode_steps
        self._has_cut = False  # evaluation has, an episode
        self._error: Exception | None = None
        self._stopped_by = ""
        self._waits_at_s = 0.0  # when the device is waited for next, to tell where training stands
        self._session = self._begin(InProcessSource(collector, self._algorithm))
        assert self._session.selection is not None, "there is a backend"
        self._selection = self._session.selection
        self._breakages = Breakages(environment, self._session, self._selection, attempt.told)

    def run(self) -> Result:
        for callback in self._attempt.callbacks:
            callback.on_start(self._order)
        result = self._result(*self._train())
        for callback in self._attempt.callbacks:
            callback.on_end(result)
        return result

    def _check_interrupt(self) -> None:
        if self._interrupted.is_set():
            raise TimeUp(
                "training was interrupted before its environments were known to share no state"
            )

    def _interrupt(self) -> None:
        self._interrupted.set()
        self._session.is_late()  # the time to end begins now

    def _check_late(self) -> None:
        """What takes longer than an interrupt may is left."""
        if self._interrupted.is_set() and self._session.is_late():
            raise TimeUp("training was interrupted, and its environments have not answered in time")

    def _cohort(self, environment: VecEnvironment, envs: int) -> Algorithm:
        own = enumerate(zip(self._seeds, self._population.values, strict=True))
        members = tuple(
            MemberConfig(f"agent-{member}", seed, values) for member, (seed, values) in own
        )
        cohort = CohortConfig(
            self._order.algorithm, members, {**self._order.defaults, **self._order.shared}
        )
        spaces = environment.observation_space, environment.action_space
        return fitting_algorithm(cohort, envs, *spaces, self._order.device)

    def _check_start(self) -> None:
        seconds = self._order.seconds
        if seconds is not None and self._elapsed_s >= seconds:
            raise TimeUp(
                f"the environments have not started within {seconds:g} seconds, the whole budget: "
                "give more seconds, fewer members or fewer envs_per_member"
            )

    def _open_judged(self, count: int, device: torch.device) -> VecEnvironment:
        """Environments for evaluation."""
        if self._proof is not None:
            end = (
                math.inf
                if self._order.seconds is None
                else self._attempt.began_at + _WAITING * self._order.seconds
            )
            if self._proof.shares_state(self._check_interrupt, end):
                raise _SharedState
        source = replace(self._order.source, spec=self._judged_spec())

        def check() -> None:
            if self._backend.left_s() <= self._start_s:
                raise TimeUp("the time for evaluation was over before its environments had started")

        if self._backend.left_s() <= count * self._start_s:
            raise TimeUp(f"the time for evaluation is too short for {count} environments to start")
        return source.open(
            count, device, evaluation=True, check_start=check, check=self._check_late
        )

    def _judged_spec(self) -> EnvironmentSpec:
        """The environment with the cut of evaluation episodes, which the first rollout decides."""
        order, session = self._order, self._session
        spec = order.source.spec
        if self._time_limit or spec.evaluation_steps:
            return spec
        taken_s = session.phases.seconds.get("collect", 0.0) / max(
            1, sum(session.moment().env_steps)
        )
        steps = evaluation_steps(order.episodes, order.steps, order.seconds, taken_s)
        spec = replace(spec, evaluation_steps=steps)
        self._order = replace(order, source=replace(order.source, spec=spec))
        return spec

    def _begin(self, source: InProcessSource) -> TrainingSession:
        order = self._order
        plan = RoundPlan(
            math.ceil((order.steps or 0) / order.members),
            order.seconds,
            target=order.target,
            statistic=order.statistic,
            episodes=order.episodes,
            seed=order.seed,
            is_last_word=True,
        )
        return TrainingSession(
            self._algorithm, source, self._backend, plan,
            began_at=self._attempt.began_at,
            episode_steps=lambda: self._time_limit or self._judged_spec().evaluation_steps or 1,
            base_env_steps=[self._base_env_steps] * order.members,
            told_to_end=lambda: self._interrupted.is_set() or self._stopped_by == "callback",
        )  # fmt: skip

    def _train(self) -> tuple[Snapshot, EvaluationResult | None]:
        """Train to the end, and choose the result."""
        session = self._session
        try:
            with interrupts(self._interrupt):
                while not (session.finished or self._stopped_by):
                    self._go_on(session.step)
                    self._tell()
                if self._error is None:
                    self._go_on(session.conclude)
            self._tell(last=True)
            self._breakages.conclude()
        except KeyboardInterrupt:  # once more, or from a callback: what is known by now will do
            self._stopped_by = "interrupt"
            if not self._selection.candidates:
                raise
        if session.confirmed is not None:
            self._stopped_by = "target"
        elif not self._stopped_by:
            self._stopped_by = session.ended_by
        return self._choose()

    def _choose(self) -> tuple[Snapshot, EvaluationResult | None]:
        """The best that was found, or without any evaluation the member of the best training
        return."""
        if known := self._known():
            judged = self._session.confirmed or max(known, key=self._rank)
            assert judged.snapshot is not None, "only those are known"
            self._warn_of_cuts(judged.result)
            return judged.snapshot, judged.result
        if self._stopped_by == "diverged":
            raise PreconditionFailed(
                "no member was evaluated: the gradients of all members were not finite before the "
                "first evaluation. "
                f"{self._breakages.first or 'Smaller rewards, or a lower learning_rate, may help'}"
            )
        text = (
            f"no policy was evaluated: {self._stopped_by} ended training before the first "
            "evaluation"
        )
        self._breakages.warn(". ".join(filter(None, (text, self._breakages.first))))
        return self._selection.best_trained()[1], None

    def _known(self) -> list[Judgement]:
        """The judgements of members that a result can be made of."""
        return [
            judged for judged in self._selection.candidates.values() if judged.snapshot is not None
        ]

    def _go_on(self, act: Callable[[], object]) -> None:
        """Take a step, or conclude. An error ends training; it is raised if no member has been
        judged."""
        try:
            act()
        except Exception as error:
            if not self._known():
                raise
            self._error, self._stopped_by = error, "error"
            self._breakages.warn(f"training was ended by {type(error).__name__}: {error}")

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._attempt.began_at

    def _tell(self, *, last: bool = False) -> None:
        """Report looks to the callbacks, update the line of progress, and replace the worst members
        if due."""
        selection = self._selection
        self._breakages.collect()
        for judged in _by_look(selection.take_news()):
            means = [selection.breaks.counted(one.result).mean for one in judged]
            self._course.best = max(self._course.best, *means)
            self._has_cut = self._has_cut or any(one.result.cut for one in judged)
            if judged[0].purpose == "progress":
                if any(one.result.returns for one in judged):
                    self._look(sum(one.env_steps for one in judged), means)
                if not last and selection.confirmed is None:
                    self._replace(means)
        if self._interrupted.is_set():
            self._stopped_by = "interrupt"
        if not last and self._elapsed_s < self._waits_at_s:
            return
        self._waits_at_s = self._elapsed_s + _WAIT_INTERVAL_S
        if not last and selection.confirmed is None and not bool(self._algorithm.active.any()):
            self._stopped_by = self._stopped_by or "diverged"
            self._breakages.warn("the gradients of all members were not finite: training has ended")
        self._go_on(self._breakages.check)
        progress = self._session.progress()
        self._course.go_on(self._elapsed_s, sum(progress.env_steps), progress.returns, last=last)

    def _replace(self, means: Sequence[float]) -> None:
        now = self._session.moment()
        part = (
            self._session.plan.part(now.elapsed_s, max(now.env_steps), now.used_s)
            or now.elapsed_s / _USUAL_S
        )
        self._population.replace(self._algorithm, means, part, now.version)

    def _look(self, env_steps: int, means: Sequence[float]) -> None:
        look = Look(self._elapsed_s, env_steps, tuple(means), self._course.best)
        self._course.looks.append(look)
        if False in [callback.on_look(look) for callback in self._attempt.callbacks]:
            self._stopped_by = self._stopped_by or "callback"

    def _rank(self, judgement: Judgement) -> tuple[bool, bool, float]:
        """Full evaluations rank above looks, whose few episodes may be lucky; all above those of
        members that break more than others."""
        breaks = self._selection.breaks
        result, is_sound = breaks.counted(judgement.result), not breaks.exceed(judgement.member)
        return is_sound, result.episodes >= self._order.episodes, self._session.plan.score(result)

    def _warn_of_cuts(self, result: EvaluationResult) -> None:
        spec = self._order.source.spec
        if self._has_cut and spec.evaluation_steps:
            self._breakages.warn(cut_warning(spec.name, spec.evaluation_steps))
        if result.cut and max(result.lengths) < (
            self._time_limit or spec.evaluation_steps or math.inf
        ):
            steps = f"{max(result.lengths):,} steps"
            self._breakages.warn(
                f"{self._stopped_by} ended the evaluation after {steps}: no episode was finished"
            )

    def _result(self, snapshot: Snapshot, evaluation: EvaluationResult | None) -> Result:
        order = self._order
        hyperparameters = order.defaults | dict(order.shared) | self._population.values_of(snapshot)
        metadata: dict[str, Any] = {
            "environment": order.source.spec.to_metadata(),
            "observation_space": self._spaces[0],
            "action_space": self._spaces[1],
            "algorithm": order.algorithm,
            "hyperparameters": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in hyperparameters.items()
            },
            "agent": f"agent-{snapshot.member}",
            "seed": self._seeds[snapshot.member],
            "env_steps": self._base_env_steps + snapshot.env_steps,
            "evaluation": None if evaluation is None else result_to_json(evaluation),
            "looks": [look.to_json() for look in self._course.looks],
            "target": order.target,
            "warnings": self._breakages.warnings,
        }
        groups = {
            group: {name: tensor.cpu() for name, tensor in tensors.items()}
            for group, tensors in snapshot.state.items()
        }
        return Result(
            Checkpoint(groups, metadata, {}), order.source, self._course.looks, self._stopped_by,
            order.target, training=self._course.returns, error=self._error,
        )  # fmt: skip


def _sized(order: Order, found: Inspection | None) -> tuple[Order, int]:
    """The environments of a member, and the order with its horizon: what the caller leaves open
    fits `seconds`."""
    usual_horizon = order.shared.get("horizon", order.defaults.get("horizon", 1))
    envs = order.envs_per_member or usual_envs_per_member(
        order.algorithm, order.source.spec, order.device, order.members,
        env_steps=math.ceil((order.steps or 0) / order.members), horizon=usual_horizon,
        is_batched=order.source.batched is not None,
    )  # fmt: skip
    if found is None:
        return order, envs
    lanes = 1 if order.source.make and not order.source.spec.isolation else core_count()
    if order.envs_per_member is None:
        envs = fitting_envs(envs, order.members, found.start_s, found.waits, lanes, order.seconds)
    if order.seconds and order.info.on_policy and "horizon" not in order.shared:
        rows = order.members * envs
        horizon = fitting_horizon(
            usual_horizon, rows, found.step_s, found.waits, lanes, order.seconds
        )
        if horizon < usual_horizon:
            order = replace(order, shared={**order.shared, "horizon": horizon})
    return order, envs


def _by_look(news: Sequence[Judgement]) -> list[list[Judgement]]:
    """Judgements of one look together, each full evaluation by itself."""
    together = itertools.groupby(news, lambda one: (one.purpose, one.confirm_time_s))
    return [list(judged) for _, judged in together]
