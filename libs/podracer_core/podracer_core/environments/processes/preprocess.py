"""Users' environments as a batch: a few processes with many environments each, over shared
memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from podracer_core.catalogue import EnvironmentSpec, from_json
from podracer_core.environments.processes.exchange import map_memory, size_memory
from podracer_core.environments.processes.row_processes import (
    MOST_ISOLATED,
    Asked,
    LocalRows,
    MakeEnvironment,
    RowProcesses,
    core_count,
)
from podracer_core.environments.processes.rows import LONGEST_MESSAGE
from podracer_core.environments.spaces import (
    action_mask_size,
    observation_array_space,
    to_gymnasium,
)
from podracer_core.environments.vec_environment import Break, Step, VecEnvironment, step_over
from podracer_core.errors import InvalidInput, PodracerError, PreconditionFailed

_LOSSES_IN_A_ROW = 3
_COUNTERS = ("seed", "episode")
_INNER = "environment."  # begins the names of what a batched environment's own state holds


class PreprocessVecEnv(VecEnvironment):
    """N environments of a user's, row i always in process i * P // N, and the same results whatever
    P is.

    What the spec names is a `gymnasium.Env`, of which every row has one, or a `VecEnvironment` (a
    `TorchEnvironment`, say), of which every process has one.

    Observations: a Box keeps its shape (uint8 as it is, all else float32); anything else is
    flattened into a float32 vector. Rewards are float32. Episode k of row i is reset with a seed
    mixed from (seeds[i], k), episode 0 with seeds[i] itself where Gymnasium can take it. Masks of
    Discrete and MultiDiscrete actions come from the environment (see `action_masks`); to find out
    whether there are any, environment 0 is reset once more at the start.

    With `isolation: process` in the spec each row has a process of its own, whatever `processes`
    is. With `elastic`, only the first of them is started at once, and `reset` starts those that
    `resize` leaves.

    A process that dies, or whose step takes longer than `step_timeout_s`, is replaced: its rows
    show reward 0, their last observation as the final one, truncated and not valid, and start their
    next episode. The same holds for a row whose environment raises once it has worked (`Breaks`
    says which exceptions are raised): its world is made anew. After numbers that are not finite a
    row starts its next episode, too. After three losses without a step between them, and when the
    user's code raises before a step has succeeded, UserCodeFailed ends it."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_envs: int,
        device: torch.device | str = "cpu",
        *,
        processes: int | None = None,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
        pictures: bool = False,
        make: MakeEnvironment | None = None,
        code: bytes = b"",
        elastic: bool = False,
        waits: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start `processes` processes (None: one a core, at most `num_envs`) and make the
        environments in them.

        `pictures`: have environment 0 drawn after every reset and step, for `frame`. `make`: makes
        each environment, in this process; `waits`: their steps wait more than they compute, so that
        each gets a thread. `code`: makes each in the processes, packed (see `exchange.packed`).
        `check` is called before each row's turn in this process, and while others take long; it
        raises TimeUp to cancel, which ends them at once."""
        isolated = spec.isolation == "process"
        wanted = num_envs if isolated else core_count() if processes is None else processes
        if num_envs < 1 or wanted < 1:
            raise InvalidInput(
                f"num_envs and processes must be at least 1, not {num_envs} and {wanted}"
            )
        self.num_envs, self.device, self.name = num_envs, torch.device(device), spec.name
        self.evaluation_steps = spec.evaluation_steps
        self._losses_in_a_row = 0
        self._breaks: list[Break] = []
        if isolated and elastic:
            self.most_at_once = MOST_ISOLATED
        started = num_envs if self.most_at_once is None else 1
        limits_s = {"step_timeout_s": step_timeout_s, "start_timeout_s": start_timeout_s}
        self._processes = (
            LocalRows(make, spec, num_envs, pictures=pictures, waits=waits, check=check)
            if make is not None
            else RowProcesses(
                spec,
                started,
                min(wanted, started),
                pictures=pictures,
                code=code,
                check=check,
                **limits_s,
            )
        )
        self._finalizer = weakref.finalize(self, self._processes.close)
        with self._closed_by_failure():
            self._open()
            if self.most_at_once is None:
                self._map()
        space = self.action_space
        limits = (space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else ()
        self._bounds = [torch.as_tensor(limit).float() for limit in limits]

    def resize(self, num_envs: int) -> bool:
        """See `VecEnvironment.resize`: processes are only added, and go on with the first rows."""
        capacity = self._processes.capacity
        if self.most_at_once is None or (capacity and num_envs > capacity):
            return False
        self.num_envs = num_envs
        vars(self).pop("_action_form", None)  # known of another number
        return True

    def _map(self) -> None:
        """Have `num_envs` rows act, and start the processes that they lack."""
        assert isinstance(self.observation_space, gymnasium.spaces.Box), "they are arrays"
        capacity = self._processes.capacity or max(self.num_envs, self.most_at_once or 0)
        mask_size = action_mask_size(self.action_space) if self.has_action_mask else 0
        layout = capacity, self.observation_space, self.action_space, mask_size
        if not self._processes.capacity:
            size_memory(self._processes.memory, *layout)
        if self.most_at_once is not None:
            self._processes.spread(self.num_envs, self.num_envs)
        self._processes.map(capacity)
        self._arrays = map_memory(self._processes.memory, *layout)[: self.num_envs]
        self._step = step_over(self._arrays)

    @property
    def action_mask(self) -> Tensor | None:
        """See `VecEnvironment.action_mask`."""
        mask = self._step.action_mask
        return mask if mask is None else mask.to(self.device)

    def reset(self, seeds: Tensor) -> Tensor:
        """See `VecEnvironment.reset`."""
        if seeds.shape != (self.num_envs,):
            raise InvalidInput(
                f"seeds must have the shape [{self.num_envs}], not {list(seeds.shape)}"
            )
        if self.most_at_once is not None:
            with self._closed_by_failure():
                self._map()
        self._arrays.seed[:] = seeds.cpu().numpy()
        self._arrays.episode[:] = 0
        return self._start_episodes()

    def set_ages(self, ages: Tensor) -> bool:
        """See `VecEnvironment.set_ages`; of a `gymnasium.Env`, where its limit is the job's or
        `gymnasium.make`'s."""
        payloads = [ages[rows].cpu().numpy().tobytes() for rows in self._processes.rows]
        return all(answer["possible"] for answer, _ in self._ask("set_ages", payloads).answers)

    def play_once(self) -> bool:
        """See `VecEnvironment.play_once`; the rows of a process that was replaced go on with their
        next episodes."""
        return all(answer["possible"] for answer, _ in self._ask("play_once").answers)

    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """See `VecEnvironment.step`; raises UserCodeFailed when the user's code does, and is closed
        then."""
        self.check_action(action)
        acted = torch.from_numpy(self._arrays.action).copy_(action.detach())
        if self._bounds:
            # A diverged member may act NaN; the user's code should not have to bear it.
            acted.nan_to_num_(nan=0.0).clamp_(*self._bounds)
        self._command("step")
        if out is None and self.device.type == "cpu":
            return self._step
        return _copy(self._step, out, self.device)

    def state(self) -> dict[str, Tensor]:
        """Seeds and episode numbers; of a batched environment also all that its own `state` tells.

        What goes on inside a `gymnasium.Env` cannot be stored.
        """
        counters = {
            name: torch.from_numpy(getattr(self._arrays, name).copy()) for name in _COUNTERS
        }
        if not self.resumes_episodes:
            return counters
        parts = [safetensors.torch.load(payload) for _, payload in self._ask("state").answers]
        inner = {_INNER + name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return counters | inner

    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Go on where `state` was taken; of a `gymnasium.Env`, start the episodes after those that
        it saw instead: they count as truncated, and go on nowhere."""
        for name in _COUNTERS:
            getattr(self._arrays, name)[:] = state[name].cpu().numpy()
        if not self.resumes_episodes:
            np.add(self._arrays.episode, 1, out=self._arrays.episode)
            return self._start_episodes()
        inner = {
            name.removeprefix(_INNER): state[name].cpu()
            for name in state
            if name.startswith(_INNER)
        }
        parts = (
            {name: value[rows].contiguous() for name, value in inner.items()}
            for rows in self._processes.rows
        )
        self._ask("load_state", [safetensors.torch.save(part) for part in parts])
        return self._step.observation.to(self.device)

    def frame(self) -> Tensor:
        """The picture of environment 0 as the last reset or step left it, before any new episode:
        uint8 [H, W, 3].

        Only with `pictures`.
        """
        if not self._processes.pictures:
            raise PreconditionFailed("pictures=True is needed to see the environment")
        with self._closed_by_failure():
            answer, payload = self._processes.ask_first("frame")
            try:
                return torch.from_numpy(np.frombuffer(bytearray(payload), np.uint8)).view(
                    answer["shape"]
                )
            except (RuntimeError, TypeError) as error:
                raise self._processes.failed(
                    f"{self.name}: a picture of another size: {error}"
                ) from error

    def take_breaks(self) -> list[Break]:
        """See `VecEnvironment.take_breaks`."""
        taken, self._breaks = self._breaks, []
        return taken

    def close(self) -> None:
        """End the processes and give back the memory."""
        self._finalizer()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes, in Linux of their launchers, in the order of their rows."""
        return [child.pid for child in self._processes.children]

    def _open(self) -> None:
        """Start the processes, and get the descriptions of their environments."""
        opened = self._processes.start()
        try:
            self.original_space = from_json(opened["observation_space"])
            self.observation_space = observation_array_space(to_gymnasium(self.original_space))
            self.action_space = to_gymnasium(from_json(opened["action_space"]))
        except InvalidInput as error:
            raise InvalidInput(
                f"{self.name}: {error.message}"[:LONGEST_MESSAGE], environment=self.name
            ) from error
        if opened["mask_size"] not in (0, action_mask_size(self.action_space)):
            raise self._processes.failed(
                f"{self.name}: masks of {opened['mask_size']} flags for {self.action_space}"
            )
        self.max_episode_steps = opened["max_episode_steps"]
        self.deterministic_evaluation = opened.get("deterministic_evaluation", False)
        self.frames_per_second: float = opened.get("frames_per_second", 0.0)
        self.has_action_mask = opened["mask_size"] > 0
        self.resumes_episodes = opened.get("batched", False)

    def _start_episodes(self) -> Tensor:
        self._command("start")
        return self._step.observation.to(self.device)

    def _command(self, command: str) -> None:
        """Run `command` in all processes, and replace those that are lost during it."""
        with self._closed_by_failure():
            asked = self._processes.ask(command)
            for answer, _ in asked.answers:
                if answer:
                    self._note(answer)
            if asked.lost:
                self._losses_in_a_row += 1
                for index, reason in asked.lost.items():
                    self._replace(index, reason, "reset: " if command == "start" else "")
            else:
                self._losses_in_a_row = 0

    def _note(self, answer: Mapping[str, Any]) -> None:
        """Note what has broken, by the answer of a process to `step` or `start`."""
        # one is enough
        spare = {"traceback": ""} if any(each.traceback for each in self._breaks[:100]) else {}
        noted = [Break(**each | spare) for each in answer.get("breaks", ())]
        if any(not 0 <= each.row < self.num_envs for each in noted):
            raise self._processes.failed(f"{self.name}: breaks of rows that are not there")
        self._breaks += noted

    def _ask(self, command: str, payloads: Sequence[bytes] = ()) -> Asked:
        """Run `command` in all processes; it is one that a replacement of a lost process could not
        answer."""
        with self._closed_by_failure():
            asked = self._processes.ask(command, payloads)
            for reason in asked.lost.values():
                raise self._processes.failed(reason)
        return asked

    @contextlib.contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        if not self._finalizer.alive:
            raise PreconditionFailed(f"{self.name}: the environments are closed")
        try:
            yield
        except PodracerError:
            self.close()
            raise

    def _replace(self, index: int, reason: str, when: str) -> None:
        """Replace a lost process, and mark its rows as not valid for this step."""
        if self._losses_in_a_row >= _LOSSES_IN_A_ROW:
            raise self._processes.failed(f"{reason}, {self._losses_in_a_row} times in a row")
        rows, arrays = self._processes.rows[index], self._arrays
        arrays.final_observation[rows] = arrays.observation[rows]
        arrays.break_off(rows)
        arrays.episode[rows] += 1
        what = when + reason.removeprefix(f"{self.name}: ")
        self._breaks += [Break(row, False, what) for row in range(rows.start, rows.stop)]
        self._note(self._processes.replace(index))


def _copy(step: Step, out: Step | None, device: torch.device) -> Step:
    """`step` in `out`, or in new tensors on `device`."""
    tensors = {
        name: tensor for name in Step.__slots__ if (tensor := getattr(step, name)) is not None
    }
    if out is None:
        return Step(
            **{"action_mask": None} | {name: tensor.to(device) for name, tensor in tensors.items()}
        )
    for name, tensor in tensors.items():
        if (place := getattr(out, name)) is not None:
            place.copy_(tensor)
    return out
