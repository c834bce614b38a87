"""The frame of every MuJoCo environment: seeds, episodes, time limits, autoreset, broken worlds,
state.

The same code runs in float64 on C MuJoCo and in float32 on MuJoCo Warp. On a CUDA device a step
never waits for the device, and whatever outlives it is written in place, so that it can be captured
in a CUDA graph."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium.envs
import mujoco
import numpy as np
import torch
from torch import Tensor

from podracer_core.environments.info import (
    Engine,
    HumanoidArguments,
    HumanoidParts,
    RunArguments,
    TaskArguments,
    WalkArguments,
)
from podracer_core.environments.mujoco.physics import BatchPhysics, Physics
from podracer_core.environments.torch_environment import Episodes, EpisodeStarts, State
from podracer_core.environments.vec_environment import (
    Step,
    VecEnvironment,
    allocate_step,
    check_seeds,
    check_state,
    check_time_limit,
    count_step,
)
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.random_numbers import normal, uniform

_MOST_FRAMES = 1000


@dataclass(frozen=True)
class _Constants:
    """What the model and the arguments of a task say.

    step_s          a step of the environment
    contact_weight  of the contact forces in the reward; 0 but for evaluation
    low, high       [nu], the actuators' range
    qpos0           [nq], positions of the model's own state
    coordinates     [nq + nv], their numbers
    """

    step_s: float
    contact_weight: float
    low: Tensor
    high: Tensor
    qpos0: Tensor
    coordinates: Tensor


class MuJoCoEnvironment(VecEnvironment):
    """N worlds of one MuJoCo model.

    A task gives `set_up` and `outcome`, `initial_state` where it does not begin near the model's
    own state, and `observe` where it shows more than views, as functions of the live views `qpos`
    [N, nq], `qvel` [N, nv], `ctrl` [N, nu] and those of `physics.field`. Actions are clipped to the
    actuators' range; NaN acts as 0. A world that breaks (NaN, a full buffer) counts as truncated
    and not valid with reward 0, shows zeros as its final observation, starts its next episode, and
    is counted in `broken_count` int64 [N]."""

    observation_space: gymnasium.spaces.Box
    action_space: gymnasium.spaces.Box

    # of each force, for the cost of contacts
    contact_force_range: tuple[float, float] = (-math.inf, math.inf)
    most_contact_cost: float = math.inf

    normal_velocity: ClassVar[bool] = False
    arguments_type: ClassVar[type[TaskArguments]]
    arguments: TaskArguments

    def __init_subclass__(cls) -> None:
        """Give a task the signature with the fields of its `arguments_type`, for callers of
        `inspect.signature`."""
        super().__init_subclass__()
        *own, _ = list(inspect.signature(MuJoCoEnvironment.__init__).parameters.values())[1:]
        arguments = inspect.signature(cls.arguments_type).parameters.values()
        cls.__signature__ = inspect.Signature([*own, *arguments])  # type: ignore[attr-defined]

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        *,
        evaluation: bool = False,
        **arguments: Any,
    ) -> None:
        """`arguments` are those of `arguments_type`; `frame_skip` physics steps are one step of the
        environment. `evaluation`: on C MuJoCo, and the reward includes the cost of contacts."""
        self.arguments = asked = self.arguments_type(**arguments)
        engine: Engine = "mujoco" if evaluation else getattr(asked, "engine", "mujoco")
        contact_weight = asked.contact_weight if evaluation else 0.0
        fields = (*self.fields(), *(["cfrc_ext"] if contact_weight else []))
        self.physics = physics = open_physics(engine, asked.xml_file, num_envs, device, fields)
        if not 1 <= asked.frame_skip <= _MOST_FRAMES:
            message = f"frame_skip must be 1 to {_MOST_FRAMES}, not {asked.frame_skip}"
            raise InvalidInput(message, frame_skip=asked.frame_skip)
        check_time_limit(asked.max_episode_steps)
        self.num_envs = physics.num_envs
        self.device = physics.device
        self.max_episode_steps = asked.max_episode_steps
        self.qpos, self.qvel, self.ctrl = (physics.field(name) for name in ("qpos", "qvel", "ctrl"))
        low, high = physics.model.actuator_ctrlrange.astype(np.float32).T
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._constants = _Constants(
            float(physics.model.opt.timestep) * asked.frame_skip,
            contact_weight,
            torch.tensor(low, device=self.device),
            torch.tensor(high, device=self.device),
            torch.as_tensor(physics.model.qpos0, dtype=physics.dtype, device=self.device),
            torch.arange(physics.model.nq + physics.model.nv, device=self.device),
        )
        self.observed = self.set_up()
        size = sum(part.shape[1] for part in self.observed)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), dtype=np.float32)
        self._episodes = Episodes(self.num_envs, self.device)
        self.broken_count = torch.zeros_like(self._episodes.seed)
        self._position = torch.zeros(self.num_envs, dtype=physics.dtype, device=self.device)
        # for tasks that do not end
        self.never = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._own_step = allocate_step(self)
        self._replay = physics.captured(lambda: self._advance(self._own_step))
        self._started = False
        self._starts: EpisodeStarts | None = None
        if self.device.type == "cpu":
            # It keeps states only: what they look like, the engine has to say.
            self._starts = EpisodeStarts(
                self._draw, lambda state, out: None, torch.empty(self.num_envs, 0)
            )

    def fields(self) -> Sequence[str]:
        """Fields of `mjData` that it reads besides positions, velocities and controls: see
        `physics.field`."""
        return ()

    @abstractmethod
    def set_up(self) -> Sequence[Tensor]:
        """Take the views that it works with; returns those that are as wide as an observation
        together, [N, k] each."""

    def initial_state(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """`qpos` [K, nq] and `qvel` [K, nv] of K first states, drawn from `key` int64 [K], one
        stream an episode. By default the model's own state with noise of `reset_noise_scale`."""
        return self.noisy_state(key, self.arguments.reset_noise_scale)

    def observe(self, out: Tensor) -> None:
        """Write the observations of the present states into `out` float32 [N, obs]: what `set_up`
        returned."""
        torch.cat(list(self.observed), 1, out=out)

    @abstractmethod
    def outcome(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """The reward [N] of the step just made under `ctrl`, and whether it ended the task, bool
        [N].

        `velocity` [N]: by how much `position` changed, per second.
        """

    def position(self) -> Tensor:
        """[N], in metres: how far a world has come along x."""
        return self.qpos[:, 0]

    def positions(self, planar: int, asked: RunArguments | HumanoidParts) -> Tensor:
        """`qpos`, without the first `planar` coordinates (how far it has come) where these are left
        out."""
        return self.qpos[:, planar if asked.exclude_current_positions_from_observation else 0 :]

    def walked(
        self, velocity: Tensor, healthy: Tensor, asked: WalkArguments | HumanoidArguments
    ) -> tuple[Tensor, Tensor]:
        """`outcome` where walking counts: forward and healthy reward minus control cost; the end
        when unhealthy."""
        reward = velocity.mul_(asked.forward_reward_weight).add_(
            healthy, alpha=asked.healthy_reward
        )
        reward.sub_(self.ctrl.square().sum(1), alpha=asked.ctrl_cost_weight)
        return reward, healthy.logical_not() if asked.terminate_when_unhealthy else self.never

    def noisy_state(self, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The model's own state and zero velocity, with noise on every coordinate.

        Uniform in ± `scale`; velocities of a task with `normal_velocity` are normal with the
        standard deviation `scale`."""
        positions, velocities = torch.split(
            self._constants.coordinates, [self.qpos.shape[1], self.qvel.shape[1]]
        )
        key = key[:, None]
        qpos = (
            uniform(key, positions)
            .to(self.qpos.dtype)
            .mul_(2 * scale)
            .sub_(scale)
            .add_(self._constants.qpos0)
        )
        if self.normal_velocity:
            return qpos, normal(key, velocities).to(self.qvel.dtype).mul_(scale)
        return qpos, uniform(key, velocities).to(self.qvel.dtype).mul_(2 * scale).sub_(scale)

    @torch.no_grad()
    def reset(self, seeds: Tensor) -> Tensor:
        """See `VecEnvironment.reset`."""
        self._check_open()
        check_seeds(seeds, self.num_envs)
        self._forget_starts()
        self.broken_count.zero_()
        states = self.initial_state(self._episodes.begin(seeds))
        self.physics.restart(self.never.logical_not(), *states)
        return self._go_on()

    def set_ages(self, ages: Tensor) -> bool:
        """See `VecEnvironment.set_ages`."""
        self._episodes.elapsed.copy_(ages)
        return self.max_episode_steps is not None

    @torch.no_grad()
    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """See `VecEnvironment.step`."""
        if not self._started:
            self._check_open()
            raise InvalidInput("reset or load_state must come before step")
        self.check_action(action)
        constants = self._constants
        self.ctrl.copy_(action.nan_to_num(nan=0.0).clamp_(constants.low, constants.high))
        if self.device.type == "cpu":
            out = out or self._own_step
            self._advance(out)
            return out
        self._replay()
        return self._own_step if out is None else _copy(self._own_step, out)

    def state(self) -> dict[str, Tensor]:
        """See `VecEnvironment.state`: the counters, and "physics.NAME" of all that `Physics.state`
        names."""
        copies = {name: value.clone() for name, value in self._counters().items()}
        return copies | {f"physics.{name}": value for name, value in self.physics.state().items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """See `VecEnvironment.load_state`."""
        self._check_open()
        check_state(state, self.state())
        self._forget_starts()
        self._episodes.load(state)
        self.broken_count.copy_(state["broken_count"])
        prefix = "physics."
        physics = {
            name.removeprefix(prefix): value
            for name, value in state.items()
            if name.startswith(prefix)
        }
        self.physics.load_state(physics)
        return self._go_on()

    def close(self) -> None:
        """Release the engine: its threads or its GPU memory are freed with the last reference to
        this environment.

        So they do not wait for the garbage collector, which does not see GPU memory and may run
        late."""
        self._started = False
        self._starts, self._replay = None, _closed  # both held this environment
        self.physics.close()

    def _check_open(self) -> None:
        if self._replay is _closed:
            raise PreconditionFailed(f"{type(self).__name__}: the environments are closed")

    def _counters(self) -> dict[str, Tensor]:
        return {**self._episodes.state(), "broken_count": self.broken_count}

    def _forget_starts(self) -> None:
        if self._starts is not None:
            self._starts.forget()

    def _go_on(self) -> Tensor:
        """Continue from the states that the engine has just been given."""
        self._started = True
        self._position.copy_(self.position())
        self.observe(self._own_step.observation)
        return self._own_step.observation

    def _advance(self, out: Step) -> None:
        """One step under the present `ctrl`, always of the same tensors."""
        constants = self._constants
        self.physics.step(self.arguments.frame_skip)
        reward, terminated = self.outcome((self.position() - self._position).div_(constants.step_s))
        if constants.contact_weight:
            forces = (
                self.physics.field("cfrc_ext").clamp(*self.contact_force_range).square().sum((1, 2))
            )
            reward = reward - forces.mul_(constants.contact_weight).clamp_(
                max=self.most_contact_cost
            )
        out.reward.copy_(reward)
        out.terminated.copy_(terminated)
        self.observe(out.final_observation)
        count_step(self._episodes.elapsed, self.max_episode_steps, out)
        self._set_aside_broken_worlds(out)
        done = out.terminated | out.truncated
        # A CPU knows at once that nothing has ended; elsewhere the host must not wait for the
        # device.
        if self.device.type == "cpu" and not done.any():
            out.observation.copy_(out.final_observation)
            self._position.copy_(self.position())
        else:
            self._restart(done)
            self.observe(out.observation)

    def _set_aside_broken_worlds(self, out: Step) -> None:
        finite = out.final_observation.sum(1).add_(out.reward).isfinite()
        torch.gt(finite, self.physics.broken(), out=out.valid)  # finite and not broken
        broken = out.valid.logical_not()
        if self.device.type == "cpu" and not broken.any():
            return
        out.terminated.logical_and_(out.valid)
        out.truncated.logical_or_(broken)
        out.reward.masked_fill_(broken, 0)
        out.final_observation.masked_fill_(broken[:, None], 0)
        self.broken_count += broken

    def _restart(self, rows: Tensor) -> None:
        """Start the next episode where `rows`; a CPU works on these only."""
        if self._starts is not None:
            index = rows.nonzero().squeeze(1)
            qpos, qvel = torch.empty_like(self.qpos), torch.empty_like(self.qvel)
            first = {"qpos": qpos.t(), "qvel": qvel.t()}
            self._starts.take(index, self._episodes, first, torch.empty(self.num_envs, 0))
            self.physics.restart(rows, qpos, qvel)
        else:
            self.physics.restart(rows, *self.initial_state(self._episodes.next(rows)))
        self._position.copy_(self.position())

    def _draw(self, key: Tensor) -> State:
        qpos, qvel = self.initial_state(key)
        return {"qpos": qpos.t(), "qvel": qvel.t()}


def _closed() -> None:
    """A closed environment's step: none gets this far."""


def _copy(step: Step, out: Step) -> Step:
    for name in ("observation", "reward", "terminated", "truncated", "final_observation", "valid"):
        getattr(out, name).copy_(getattr(step, name))
    return out


def open_physics(
    engine: Engine,
    xml_file: str,
    num_envs: int,
    device: torch.device | str,
    fields: Sequence[str] = (),
) -> Physics:
    """`num_envs` worlds of the model in `xml_file` (see `load_model`), with `fields` of `mjData` to
    read.

    `engine` "auto" is "warp" on a CUDA device and "mujoco" on a CPU. Raises InvalidInput for what
    cannot be, and PreconditionFailed where Warp is not installed."""
    if num_envs < 1:
        raise InvalidInput(f"num_envs must be at least 1, not {num_envs}", num_envs=num_envs)
    place = torch.device(device)
    chosen: str = ("mujoco" if place.type == "cpu" else "warp") if engine == "auto" else engine
    if chosen == "mujoco" and place.type == "cpu":
        return BatchPhysics(load_model(xml_file), num_envs, fields)
    if chosen == "warp":
        return _open_warp(xml_file, num_envs, place, fields)
    if chosen == "mujoco":
        message = f"C MuJoCo steps {xml_file} on a CPU only, not on {place}"
    else:
        message = f"engine must be auto, mujoco or warp, not {engine!r}"
    raise InvalidInput(message, field="environment.kwargs.engine")


def _open_warp(
    xml_file: str, num_envs: int, device: torch.device, fields: Sequence[str]
) -> Physics:
    try:
        from podracer_core.environments.mujoco.warp_physics import WarpPhysics
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("podracer_core"):
            raise
        message = (
            f"MuJoCo Warp, which steps {xml_file} on {device}, needs "
            f"podracer-core[mujoco-warp]: {error}"
        )
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    return WarpPhysics(load_model(xml_file), num_envs, device, fields)


def load_model(xml_file: str) -> mujoco.MjModel:
    """The model in `xml_file`: one of Gymnasium's, or a path that starts with ".", "~" or "/".

    Raises InvalidInput if there is none, or MuJoCo does not understand it.
    """
    own = xml_file.startswith((".", "~", "/"))
    assets = Path(gymnasium.envs.__file__).parent / "mujoco" / "assets"
    path = Path(xml_file).expanduser() if own else assets / xml_file
    if not path.is_file():
        known = ", ".join(sorted(file.name for file in assets.glob("*.xml")))
        raise _no_model(f"there is no model {path}; Gymnasium's are {known}")
    try:
        # Through MjSpec a deprecation (`settotalmass` of half_cheetah.xml) is a Python warning that
        # can be ignored; MjModel.from_xml_path would write it to MUJOCO_LOG.TXT in the working
        # directory.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="compiler attribute 'settotalmass'")
            return mujoco.MjSpec.from_file(str(path)).compile()
    except ValueError as error:
        reason = " ".join(str(error).split())  # it comes in several lines
        raise _no_model(f"MuJoCo cannot read {path}: {reason}") from error


def _no_model(message: str) -> InvalidInput:
    return InvalidInput(message, field="environment.kwargs.xml_file")
