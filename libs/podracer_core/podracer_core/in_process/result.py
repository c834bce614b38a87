"""The result of training: a policy that acts and can be evaluated, filmed, plotted, saved, and
trained further."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from podracer_core.algorithms import Algorithm
from podracer_core.catalogue import EnvironmentSpec, flat_rows, parts_of, treatment
from podracer_core.checkpoint import (
    Checkpoint,
    array_spaces,
    load_actor,
    observation_origin,
    open_checkpoint_folder,
    open_packed_policy,
    original_space,
    pack_policy,
    require_spaces,
    save_checkpoint,
)
from podracer_core.environments import Recording, record_video, to_gymnasium
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.evaluate import EvaluationResult, evaluator_class, result_from_json
from podracer_core.in_process.order import (
    Environment,
    EnvironmentSource,
    find_source,
    source_of_checkpoint,
)
from podracer_core.in_process.reporting import Look
from podracer_core.networks import NetworkActor
from podracer_core.storage import DRAFTS, FILE_NAME, FolderStore
from podracer_core.training import inherit, resume

_PACKED = ".safetensors"
_OF_ENVIRONMENTS = ("environment", "replay")  # groups that only the same job can use


class Policy:
    """A policy, with NumPy arrays in and out; it includes the normalization.

    observation_space, action_space   of the environment
    parts                             of an observation, with their places in the flat row that the
                                      network sees
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._actor, self._original_space = load_actor(checkpoint), original_space(checkpoint)
        self._flat, self.action_space = array_spaces(checkpoint)
        self._origin = observation_origin(checkpoint).numpy()
        self.observation_space = to_gymnasium(self._original_space)
        self.parts = parts_of(self._original_space)
        self._algorithm = str(checkpoint.metadata["algorithm"])
        if isinstance(self._actor, NetworkActor) and "random_fraction" in self._actor.settings:
            # exploration, which is no part of the policy
            self._actor.settings["random_fraction"].zero_()

    def __call__(
        self,
        observation: Any,
        action_mask: Any = None,
        *,
        deterministic: bool = True,
        seed: int | np.random.Generator | None = None,
    ) -> NDArray[Any]:
        """The action [*action] for an observation, or [B, *action] for a batch, as the
        environment's `step` takes it.

        observation    as the environment gives it, dict and tuple included, or as a flat row. A
                       batch has one more axis in front, in each part; a list of dicts or tuples is
                       a batch, too
        action_mask    bool [n] or [B, n]: the allowed actions
        deterministic  False: draw from the policy's distribution, with `seed`: a number, or a
                       generator that goes on

        Raises InvalidInput for another shape, and PreconditionFailed where an algorithm has no
        distribution."""
        rows, is_single = self._rows(observation)
        seen = rows if rows.dtype == np.uint8 else (rows - self._origin).astype(np.float32)
        batch, mask = torch.from_numpy(np.array(seen)), None
        if action_mask is not None:
            flags = np.array(action_mask, bool)
            mask = torch.from_numpy(flags[None] if is_single else flags)
        taken = self.act(batch, mask, None if deterministic else np.random.default_rng(seed))
        actions = self._to_environment(taken.numpy())
        return actions[0] if is_single else actions

    def act(
        self,
        observation: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        random: np.random.Generator | None = None,
    ) -> torch.Tensor:
        """The actions in tensors: rows of a batch of environments [B, *obs] and bool [B, n] -> [B,
        *action]; discrete actions count from 0. Greedy without `random`, else drawn from the
        distribution."""
        rows = observation.unsqueeze(0)
        mask = None if action_mask is None else action_mask.unsqueeze(0)
        if random is not None and not self._actor.head.stochastic:
            raise PreconditionFailed(
                f"{self._algorithm} has no distribution to draw from, only its best action: use "
                "deterministic=True",
                reason="DETERMINISTIC_POLICY",
            )
        with torch.inference_mode():
            if random is None:
                return self._actor.greedy(rows, mask)[0]
            keys = torch.from_numpy(random.integers(2**63, size=(1, len(observation))))
            noise = self._actor.draw_noise(keys, torch.zeros(1, dtype=torch.int64), 1)[0]
            return self._actor.head.to_environment(self._actor.act(rows, noise, mask)[0])[0]

    def _rows(self, observation: Any) -> tuple[NDArray[Any], bool]:
        """[B, *obs], uint8 or float64, and whether it is a single one."""
        shape, dtype = self._flat.shape, np.uint8 if self._flat.dtype == np.uint8 else np.float64
        if (
            isinstance(observation, list)
            and observation
            and isinstance(observation[0], Mapping | tuple)
        ):
            return np.concatenate(
                [flat_rows(self._original_space, each)[0] for each in observation]
            ), False
        if not isinstance(observation, Mapping | tuple):
            with suppress(TypeError, ValueError):  # what is wrong is told below
                rows = np.asarray(observation, dtype)
                if shape in (rows.shape, rows.shape[1:]):
                    return rows.reshape(-1, *shape), rows.shape == shape
        return flat_rows(self._original_space, observation)

    def _to_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        match self.action_space:
            case gymnasium.spaces.Box(low=low, high=high, dtype=dtype):
                return np.asarray(np.clip(actions, low, high), dtype)
            case (
                gymnasium.spaces.Discrete(start=start) | gymnasium.spaces.MultiDiscrete(start=start)
            ):
                return np.asarray(actions + start)
            case _:
                return actions


class Result:
    """The best policy of a training, and the training's history.

    policy       the policy
    best         its evaluation: mean, 95 % interval, and the returns of its greedy episodes; None
                 without one
    history      the looks at the members during training, oldest first
    training     environment steps, and the mean return of the training episodes that ended last
                 then; it is not saved
    stopped_by   "target", "steps", "seconds", "callback", "interrupt", "diverged" or "error"; "" if
                 unknown
    error        what ended training, if an error did
    warnings     what training told by warnings: of the environment, broken episodes, a cut of
                 evaluation episodes
    checkpoint   the checkpoint that `save` writes
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        source: EnvironmentSource | None = None,
        history: Sequence[Look] = (),
        stopped_by: str = "",
        target: float | None = None,
        *,
        training: Sequence[tuple[int, float]] = (),
        error: Exception | None = None,
    ) -> None:
        """`source`: of the environment; default: the checkpoint's. Raises InvalidInput if the
        checkpoint cannot act."""
        self.checkpoint, self.history, self.stopped_by = checkpoint, tuple(history), stopped_by
        self.training = tuple(training)
        self.policy = Policy(checkpoint)
        self._stored = EnvironmentSpec.from_metadata(checkpoint.metadata["environment"])
        self._source, self._target = source, target
        judged = checkpoint.metadata.get("evaluation")
        self.warnings, self.error = tuple(map(str, checkpoint.metadata.get("warnings", ()))), error
        self.best: EvaluationResult | None = None if judged is None else result_from_json(judged)

    @property
    def returns(self) -> NDArray[np.float64]:
        """The returns of the episodes of `best`, [episodes]; empty without one."""
        return np.array(self.best.returns if self.best else ())

    @property
    def treatment(self) -> str:
        """How the policy sees the parts of an observation, for people; empty for a plain vector."""
        return treatment(original_space(self.checkpoint), self._stored.observation_origin)

    @property
    def environment(self) -> str:
        """The id of the training environment, or `module:Name`."""
        return self._source.spec.name if self._source else self._stored.name

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.checkpoint.metadata["algorithm"])

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All hyperparameters of the best member."""
        return dict(self.checkpoint.metadata["hyperparameters"])

    @property
    def env_steps(self) -> int:
        """Environment steps of the best member when its policy was selected."""
        return int(self.checkpoint.metadata.get("env_steps", 0))

    def evaluate(self, episodes: int = 32, *, seed: int = 0) -> EvaluationResult:
        """Greedy episodes with the seeds `seed`, `seed` + 1, …; the same seeds give the same
        returns.

        Raises InvalidInput for an environment that is unavailable (see `load`), or has other
        spaces."""
        if episodes < 1:
            raise InvalidInput(f"episodes: expected at least 1, got {episodes}")
        source = self._found_source()
        judge = evaluator_class(self.checkpoint.metadata.get("evaluator", ""))(
            lambda count: require_spaces(
                self.checkpoint, source.open(count, evaluation=True), source.spec.name
            ),
            all_alike=source.all_alike,
        )
        try:
            (result,) = judge.evaluate(load_actor(self.checkpoint), range(seed, seed + episodes))
        finally:
            judge.close()
        return result

    def video(self, path: Path | str = "policy.mp4", *, seed: int = 0) -> Recording:
        """Film one greedy episode into an MP4 file. Raises PreconditionFailed without the extra
        podracer-core[video], and InvalidInput for an environment that draws no pictures."""
        source = self._found_source()
        if source.batched is not None:
            raise InvalidInput(f"{source.spec.name} cannot be filmed: it is batched")
        return record_video(source.spec, self.policy.act, path, seed=seed, make=source.make)

    def plot(self) -> Any:
        """A matplotlib figure by environment steps: mean greedy return of each member's looks, and
        training's returns.

        Raises PreconditionFailed without the extra podracer-core[plot].
        """
        from podracer_core.in_process.reporting import plot_looks

        return plot_looks(
            self.history, f"{self.algorithm} in {self.environment}", self._target, self.training
        )

    def save(self, path: Path | str) -> Path:
        """Save a checkpoint to a folder, which `podracer evaluate`, `serve` and `export` accept. Or
        save the parts that acting needs to one file `….safetensors`. Replaces what exists. Returns
        the path."""
        path = Path(path)
        if path.suffix == _PACKED:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pack_policy(self.checkpoint))
            return path
        if path.is_file():
            raise InvalidInput(
                f"{path} is a file: give a folder, or a file that ends with {_PACKED}"
            )
        store = FolderStore(path)
        store.delete(FILE_NAME)  # without it nothing counts that is half written
        save_checkpoint(store, "", self.checkpoint.groups, self.checkpoint.metadata)
        shutil.rmtree(path / DRAFTS, ignore_errors=True)
        return path

    def __repr__(self) -> str:
        text = f"{self.algorithm} in {self.environment}"
        if self.best is None:
            text += ": not evaluated"
        else:
            width = f" ± {self.best.half_width:.2g}" if math.isfinite(self.best.half_width) else ""
            # the interval is the statistic's: not about the mean of returns, nor symmetric
            if self.best.deterministic:
                width = (
                    f" (95 % interval {self.best.lower_bound:.4g} to {self.best.upper_bound:.4g})"
                )
            text += f": {self.best.mean:.4g}{width} in {self.best.episodes} greedy episodes"
            if self.best.broken:
                text += f" ({self.best.broken} more broke; {self.best.first_break})"
        return f"<Result {text}{f', ended by {self.stopped_by}' if self.stopped_by else ''}>"

    def _found_source(self) -> EnvironmentSource:
        source = self._source or source_of_checkpoint(self._stored)
        names = "evaluation_steps", "observation_origin"
        return replace(
            source,
            spec=replace(source.spec, **{name: getattr(self._stored, name) for name in names}),
        )


def load(
    path: Path | str,
    environment: Environment | None = None,
    *,
    environment_arguments: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
) -> Result:
    """Load a saved `Result` or any checkpoint of a job: a folder, its manifest.json, or a file
    `….safetensors`.

    `environment` is needed to evaluate or film a policy that was trained in the caller's own class
    or function, or in an id with a module such as `ale_py:ALE/Breakout-v5` (pip install ale-py): a
    file must not start code. Otherwise the checkpoint names it. No pickle is read. Raises
    InvalidInput if there is no checkpoint, DataCorrupted if its bytes have changed."""
    path = Path(path)
    if path.suffix == _PACKED:
        if not path.is_file():
            message = f"no checkpoint at {path}"
            raise InvalidInput(
                message, violations=[FieldViolation("path", message)], reason="NO_CHECKPOINT"
            )
        checkpoint = open_packed_policy(path)
    else:
        checkpoint = open_checkpoint_folder(path, skip=_OF_ENVIRONMENTS)
    source = None
    if environment is not None:
        isolation = checkpoint.metadata["environment"].get("isolation", "")
        source = find_source(environment, environment_arguments, max_episode_steps, isolation)
    elif environment_arguments is not None or max_episode_steps is not None:
        raise PreconditionFailed(
            "environment_arguments and max_episode_steps go with an environment"
        )
    looks = [
        Look(**{**look, "returns": tuple(look["returns"])})
        for look in checkpoint.metadata.get("looks", ())
    ]
    return Result(checkpoint, source, looks, target=checkpoint.metadata.get("target"))


Start = Result | Path | str | None
"""A result, or a path that `podracer.load` accepts."""


def find_start(start: Start, algorithm: str | None) -> Checkpoint | None:
    """The checkpoint of `start`. Raises InvalidInput if there is none, or if it is of another
    algorithm; DataCorrupted if its bytes have changed."""
    if start is None:
        return None
    if not isinstance(start, Result | str | os.PathLike):
        raise InvalidInput.of(
            "start",
            f"expected a Result, or the path of a saved one or of a checkpoint; got {start!r:.100}",
            "NO_START",
        )
    checkpoint = (start if isinstance(start, Result) else load(start)).checkpoint
    trained = checkpoint.metadata["algorithm"]
    if algorithm not in (None, trained):
        problem = (
            f"it was trained by {trained}, not by {algorithm}: leave `algorithm` out to go "
            f"on with {trained}"
        )
        raise InvalidInput.of("start", problem, "NO_START")
    return checkpoint


def begin_from(checkpoint: Checkpoint, algorithm: Algorithm) -> None:
    """Give every member the weights, optimizer state and statistics of `checkpoint`, where it has
    them.

    The first member goes on exactly; the others have their own streams of random numbers.
    """
    resume(algorithm, 0, checkpoint.groups)
    for member in range(1, algorithm.members):
        inherit(algorithm, member, "copy", [(checkpoint.groups, 1.0)], keep_optimizer=True)
