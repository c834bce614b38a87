"""Any Gymnasium environment as a batch: a few processes with many environments each, over shared memory."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Mapping

import gymnasium
import torch
from torch import Tensor

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.spaces import from_json
from podracer_core.environments.child_process import ChildLost, ChildProcess
from podracer_core.environments.shared_arrays import SharedArrays, create_memory, map_memory, size_memory
from podracer_core.environments.spaces import observation_array_space, to_gymnasium
from podracer_core.environments.vec_environment import Step, VecEnvironment
from podracer_core.errors import InvalidInput, PodracerError, PreconditionFailed, UserCodeFailed

__all__ = ["PreprocessVecEnv"]

_LOSSES_IN_A_ROW = 3


class PreprocessVecEnv(VecEnvironment):
    """N Gymnasium environments, row i always in process i * P // N, and the same results whatever P is.

    Observations: a Box keeps its shape (uint8 as it is, all else float32); anything else is flattened into a float32
    vector. Rewards are float32. Episode k of row i is reset with a seed mixed from (seeds[i], k), episode 0 with
    seeds[i] itself where Gymnasium can take it. Masks of Discrete and MultiDiscrete actions come from the environment
    (see `action_masks`); to find out whether there are any, environment 0 is reset once more at the start.

    A process that dies, or whose step takes longer than `step_timeout_s`, is replaced: its rows show reward 0, their
    last observation as the final one, truncated and not valid, and start their next episode. After three such losses
    without a step between them, and at once when the user's code raises, UserCodeFailed ends it.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_envs: int,
        device: torch.device | str = "cpu",
        *,
        processes: int | None = None,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        """Start `processes` processes (None: one a core, at most `num_envs`) and make the environments in them."""
        wanted = _core_count() if processes is None else processes
        if num_envs < 1 or wanted < 1:
            raise InvalidInput(f"num_envs and processes must be at least 1, not {num_envs} and {wanted}")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self._spec = spec
        self._step_timeout_s, self._start_timeout_s = step_timeout_s, start_timeout_s
        count = min(wanted, num_envs)
        edges = [num_envs * index // count for index in range(count + 1)]
        self._rows = [slice(first, last) for first, last in itertools.pairwise(edges)]
        self._losses_in_a_row = 0
        self._memory = create_memory()
        self._children: list[ChildProcess] = []
        self._finalizer = weakref.finalize(self, _give_back, self._children, self._memory)
        try:
            self._arrays = self._start_children()
        except PodracerError:
            self.close()
            raise
        self._step = Step(
            observation=torch.from_numpy(self._arrays.observation),
            reward=torch.from_numpy(self._arrays.reward),
            terminated=torch.from_numpy(self._arrays.terminated),
            truncated=torch.from_numpy(self._arrays.truncated),
            final_observation=torch.from_numpy(self._arrays.final_observation),
            action_mask=torch.from_numpy(self._arrays.action_mask) if self.has_action_mask else None,
            valid=torch.from_numpy(self._arrays.valid),
        )
        self._action = torch.from_numpy(self._arrays.action)
        self._bounds: tuple[Tensor, Tensor] | None = None
        if isinstance(self.action_space, gymnasium.spaces.Box):
            low, high = self.action_space.low, self.action_space.high
            self._bounds = torch.as_tensor(low).float(), torch.as_tensor(high).float()

    @property
    def action_mask(self) -> Tensor | None:
        """See `VecEnvironment.action_mask`."""
        mask = self._step.action_mask
        return mask if mask is None else mask.to(self.device)

    def reset(self, seeds: Tensor) -> Tensor:
        """See `VecEnvironment.reset`."""
        if seeds.shape != (self.num_envs,):
            raise InvalidInput(f"seeds must have the shape [{self.num_envs}], not {list(seeds.shape)}")
        self._arrays.seed[:] = seeds.cpu().numpy()
        self._arrays.episode[:] = 0
        return self._start_episodes()

    @torch.no_grad()
    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """See `VecEnvironment.step`; raises UserCodeFailed when the user's code does, and is closed then."""
        if self._bounds is not None:
            # A diverged member may act NaN; the user's code should not have to bear it.
            action = action.to("cpu", torch.float32).nan_to_num(nan=0.0).clamp(*self._bounds)
        self._action.copy_(action)
        self._command("step")
        if out is None and self.device.type == "cpu":
            return self._step
        return _copy(self._step, out, self.device)

    def state(self) -> dict[str, Tensor]:
        """Seeds and episode numbers: what goes on inside a user's environment cannot be stored."""
        return {name: torch.from_numpy(getattr(self._arrays, name).copy()) for name in ("seed", "episode")}

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Start the episodes after those that `state` saw: they count as truncated, and go on nowhere."""
        self._arrays.seed[:] = state["seed"].cpu().numpy()
        self._arrays.episode[:] = state["episode"].cpu().numpy() + 1
        return self._start_episodes()

    def close(self) -> None:
        """End the processes and give back the memory."""
        self._finalizer()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes, in the order of their rows."""
        return [child.pid for child in self._children]

    def _start_children(self) -> SharedArrays:
        for _ in self._rows:
            self._children.append(ChildProcess(self._spec.name, self._memory))
        for child, rows in zip(self._children, self._rows, strict=True):
            self._send_open(child, rows)
        deadline = time.monotonic() + self._start_timeout_s
        try:
            answers = [child.receive(deadline) for child in self._children]
            self._children[0].send("find_masks")
            self._mask_size = int(self._children[0].receive(deadline)["mask_size"])
        except ChildLost as lost:
            raise UserCodeFailed(lost.message, environment=self._spec.name) from lost
        answer = answers[0]
        self.observation_space = observation_array_space(to_gymnasium(from_json(answer["observation_space"])))
        self.action_space = to_gymnasium(from_json(answer["action_space"]))
        self.max_episode_steps = answer["max_episode_steps"]
        self.has_action_mask = self._mask_size > 0
        layout = self.num_envs, self.observation_space, self.action_space, self._mask_size
        size_memory(self._memory, *layout)
        for child, rows in zip(self._children, self._rows, strict=True):
            self._send_map(child, rows)
            child.receive(deadline)
        return map_memory(self._memory, *layout)

    def _send_open(self, child: ChildProcess, rows: slice) -> None:
        child.send("open", environment=self._spec.to_json(), count=rows.stop - rows.start)

    def _send_map(self, child: ChildProcess, rows: slice) -> None:
        child.send("map", num_envs=self.num_envs, first=rows.start, mask_size=self._mask_size)

    def _start_episodes(self) -> Tensor:
        self._command("start")
        return self._step.observation.to(self.device)

    def _command(self, command: str) -> None:
        """Have all processes do `command`, and replace those that are lost over it."""
        if not self._finalizer.alive:
            raise PreconditionFailed(f"{self._spec.name}: the environments are closed")
        try:
            lost = self._ask_all(command)
            self._losses_in_a_row = self._losses_in_a_row + 1 if lost else 0
            for index, error in lost.items():
                self._replace(index, error)
        except PodracerError:
            self.close()
            raise

    def _ask_all(self, command: str) -> dict[int, ChildLost]:
        """Process index → why it was lost."""
        lost: dict[int, ChildLost] = {}
        for index, child in enumerate(self._children):
            try:
                child.send(command)
            except ChildLost as error:
                lost[index] = error
        deadline = time.monotonic() + self._step_timeout_s
        for index, child in enumerate(self._children):
            if index not in lost:
                try:
                    child.receive(deadline)
                except ChildLost as error:
                    lost[index] = error
        return lost

    def _replace(self, index: int, error: ChildLost) -> None:
        """Put a new process in the place of a lost one, and set its rows aside for this step."""
        if self._losses_in_a_row >= _LOSSES_IN_A_ROW:
            message = f"{error.message}, {self._losses_in_a_row} times in a row"
            raise UserCodeFailed(message, environment=self._spec.name) from error
        rows, arrays = self._rows[index], self._arrays
        arrays.final_observation[rows] = arrays.observation[rows]
        arrays.reward[rows] = 0
        arrays.terminated[rows] = False
        arrays.truncated[rows] = True
        arrays.valid[rows] = False
        arrays.episode[rows] += 1
        child = self._children[index] = ChildProcess(self._spec.name, self._memory)
        deadline = time.monotonic() + self._start_timeout_s
        try:
            self._send_open(child, rows)
            child.receive(deadline)
            self._send_map(child, rows)
            child.receive(deadline)
            child.send("start")
            child.receive(deadline)
        except ChildLost as again:
            raise UserCodeFailed(again.message, environment=self._spec.name) from again


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _give_back(children: list[ChildProcess], memory: int) -> None:
    ChildProcess.end_all(children)
    os.close(memory)


def _copy(step: Step, out: Step | None, device: torch.device) -> Step:
    """`step` in `out`, or in new tensors on `device`."""
    names = ("observation", "reward", "terminated", "truncated", "final_observation", "valid")
    mask = step.action_mask
    if out is None:
        moved = {name: getattr(step, name).to(device) for name in names}
        return Step(action_mask=mask if mask is None else mask.to(device), **moved)
    for name in names:
        getattr(out, name).copy_(getattr(step, name))
    if mask is not None and out.action_mask is not None:
        out.action_mask.copy_(mask)
    return out
