"""Simulators behind rsl_rl's interface, `VecEnv`, to which mjlab, Isaac Lab and MuJoCo Playground
have wrappers."""

from __future__ import annotations

import contextlib
import io
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from podracer_core.catalogue import ASYMMETRIC, BoxSpace, DictSpace
from podracer_core.config import did_you_mean
from podracer_core.environments.spaces import observation_array_space, to_gymnasium
from podracer_core.environments.vec_environment import (
    Step,
    VecEnvironment,
    allocate_step,
    check_seeds,
    set_aside_broken_worlds,
)
from podracer_core.errors import InvalidInput, PreconditionFailed

_MOST_SEED = 1 << 31


class RslRlEnvironment(VecEnvironment):
    """N worlds of a simulator that `make` gives; they stay on its device.

    Actions are not clipped here. Observations are float32 rows: the groups that the actor sees,
    then those of the critic's that it does not see. The simulator does not show the last
    observation of an episode, so `final_observation` is the one before it: a time limit
    (`time_outs`) is bootstrapped from there, as rsl_rl does. Only the first `reset` seeds it, all
    worlds at once, and it cannot give its state: `load_state` begins new episodes.

    observation_groups   as rsl_rl's `obs_groups`: the groups of "actor" and "critic", which have
                         everything that the actor sees, too; by default the groups of these names,
                         for the actor else "policy"
    """

    observation_groups: Mapping[str, Sequence[str]] = {}
    resumes_episodes = False

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **arguments: Any) -> None:
        """`arguments` are those of `make`."""
        self.num_envs, self.device = num_envs, torch.device(device)
        self._simulator = self.make(num_envs, self.device, **arguments)
        limit = getattr(self._simulator, "max_episode_length", None)
        self.max_episode_steps = None if limit is None else int(torch.as_tensor(limit).max())
        observations = self._simulator.get_observations()
        actor, extra = self._resolved(list(observations.keys()))
        self._groups = [*actor, *extra]
        sizes = [
            sum(math.prod(observations[name].shape[1:]) for name in names)
            for names in (actor, extra)
        ]
        boxes = [BoxSpace(-math.inf, math.inf, (size,)) for size in sizes]
        if sizes[1]:
            self.original_space = DictSpace(tuple(zip(ASYMMETRIC, boxes, strict=True)))
        self.observation_space = observation_array_space(
            to_gymnasium(self.original_space or boxes[0])
        )
        size = (self._simulator.num_actions,)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, size, np.float32)
        self._own_step = allocate_step(self)
        self._last = torch.zeros_like(self._own_step.observation)
        self._seed = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._is_seeded = False

    @abstractmethod
    def make(self, num_envs: int, device: torch.device, **arguments: Any) -> Any:
        """A `VecEnv` of `num_envs` worlds on `device`."""

    def reset(self, seeds: Tensor) -> Tensor:
        """See `VecEnvironment.reset`, and above."""
        check_seeds(seeds, self.num_envs)
        self._seed.copy_(seeds)
        with _as_usual():
            if not self._is_seeded and hasattr(self._simulator, "seed"):
                # More often than once an evaluation would repeat the random numbers of training:
                # simulators share them.
                self._simulator.seed(int(seeds[0]) % _MOST_SEED)
            self._is_seeded = True
            self._simulator.reset()
            observations = self._simulator.get_observations()
        self._observe(observations, self._own_step.observation)
        self._last.copy_(self._own_step.observation)
        return self._own_step.observation

    def set_ages(self, ages: Tensor) -> bool:
        """See `VecEnvironment.set_ages`."""
        self._simulator.episode_length_buf = ages.to(self.device, copy=True)
        return True

    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """See `VecEnvironment.step`."""
        self.check_action(action)
        out = out or self._own_step
        with _as_usual():
            observations, reward, done, extras = self._simulator.step(action.clone())
        done = done.bool()
        time_outs = extras.get("time_outs")
        out.truncated.copy_(
            torch.zeros_like(done) if time_outs is None else done & time_outs.bool()
        )
        torch.gt(done, out.truncated, out=out.terminated)  # done and not truncated
        out.reward.copy_(reward)
        self._observe(observations, out.observation)
        torch.where(done.unsqueeze(1), self._last, out.observation, out=out.final_observation)
        out.valid.fill_(True)
        set_aside_broken_worlds(out)
        self._last.copy_(out.observation.nan_to_num_(0.0, 0.0, 0.0))
        return out

    def state(self) -> dict[str, Tensor]:
        """The seeds: see `load_state`."""
        return {"seed": self._seed.clone()}

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Begin new episodes."""
        return self.reset(state.get("seed", self._seed[:0]))

    def close(self) -> None:
        """See `VecEnvironment.close`."""
        close = getattr(self._simulator, "close", None)
        if close is not None:
            close()

    def _resolved(self, there: Sequence[str]) -> tuple[list[str], list[str]]:
        """The groups that the actor sees, and further ones for the critic."""
        usual = {
            "actor": [name for name in ("actor", "policy") if name in there][:1],
            "critic": ["critic"],
        }
        actor = list(self.observation_groups.get("actor", usual["actor"]))
        critic = self.observation_groups.get(
            "critic", [name for name in usual["critic"] if name in there]
        )
        missing = [name for name in (*actor, *critic) if name not in there]
        if missing or not actor:
            wanted = ", ".join(missing) or "actor or policy"
            message = (
                f"the simulator's observations have no group {wanted}, only {', '.join(there)}"
            )
            raise InvalidInput(f"{message}: observation_groups names what actor and critic see")
        return actor, [name for name in critic if name not in actor]

    def _observe(self, observations: Mapping[str, Tensor], out: Tensor) -> None:
        torch.cat([observations[name].flatten(1) for name in self._groups], 1, out=out)


@contextlib.contextmanager
def _as_usual() -> Iterator[None]:
    """For tensors that a simulator keeps: those of inference mode could not be written to outside
    of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Mjlab(RslRlEnvironment):
    """A task of mjlab, with the observation groups, and the limit of actions, that it has for
    rsl_rl."""

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str = "cpu",
        *,
        task: str,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(num_envs, device, task=task, max_episode_steps=max_episode_steps)

    def make(self, num_envs: int, device: torch.device, **arguments: Any) -> Any:
        """Raises InvalidInput for an unknown task, and PreconditionFailed where mjlab is not
        installed."""
        try:
            import mjlab.tasks  # noqa: F401 - registers them
            from mjlab.envs import ManagerBasedRlEnv
            from mjlab.rl import RslRlVecEnvWrapper
            from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg
        except ModuleNotFoundError as error:
            message = f"the tasks of mjlab need podracer-core[mjlab]: {error}"
            raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
        task, steps = arguments["task"], arguments["max_episode_steps"]
        if task not in list_tasks():
            advice = did_you_mean(task, list_tasks(), f"it has {', '.join(list_tasks())}")
            raise InvalidInput(
                f"mjlab has no task {task!r}; {advice}", field="environment.kwargs.task"
            )
        config, training = load_env_cfg(task), load_rl_cfg(task)
        config.scene.num_envs = num_envs
        if steps is not None:
            # rounded up
            config.episode_length_s = (steps - 0.5) * config.sim.mujoco.timestep * config.decimation
        self.observation_groups = training.obs_groups
        place = f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"
        # tables of what the task consists of
        with _as_usual(), contextlib.redirect_stdout(io.StringIO()):
            simulator = ManagerBasedRlEnv(config, device=place)
            return RslRlVecEnvWrapper(simulator, clip_actions=training.clip_actions)
