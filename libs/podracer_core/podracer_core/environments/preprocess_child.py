"""The process that runs a user's Gymnasium environments for `PreprocessVecEnv`.

    python -m podracer_core.environments.preprocess_child SOCKET_FD MEMORY_FD PARENT_PID DIE_WITH_THREAD

It answers JSON lines on the socket, one for each command, and shares arrays with its parent; it never imports torch.

    {"command": "open", "environment": {…}, "count": 32}    -> the spaces and the time limit
    {"command": "inspect", "steps": 10}                     -> {"ok": true}, or what is wrong with the environment
    {"command": "find_masks"}                               -> {"mask_size": 6}; 0 where there are no action masks
    {"command": "map", "num_envs": 64, "first": 32, "mask_size": 6}
                                                            -> {"ok": true}; rows first … first + count - 1 are its own
    {"command": "start"}    a new episode in every row, numbered by `episode`
    {"command": "step"}     acts once in every row

A failure answers {"error": {"kind": "user_code" or "invalid", "message": …, "traceback": …}}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from podracer_core.catalogue.spaces import to_json
from podracer_core.environments.action_masks import action_mask_size, check_mask, info_mask, mask_method, sample_allowed
from podracer_core.environments.shared_arrays import SharedArrays, map_memory
from podracer_core.environments.space_check import check_reset, check_step
from podracer_core.environments.spaces import action_array_space, from_gymnasium, observation_array_space
from podracer_core.errors import InvalidInput

_LONGEST_MESSAGE = 2_000  # characters
_LONGEST_TRACEBACK = 20_000  # characters, from its end
_CLOSING_S = 2.0
_PR_SET_PDEATHSIG = 1


class Environments:
    """Some rows of the batch: its commands are the methods whose names begin with `do_`."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._environments: list[gymnasium.Env[Any, Any]] = []
        self._mask_methods: list[Callable[[], Any] | None] = []
        self._rows: SharedArrays | None = None
        self.doing = "construction"  # what the user's code is doing, for the message when it fails

    def do_open(self, environment: dict[str, Any], count: int) -> dict[str, Any]:
        """Make `count` environments and tell their spaces."""
        self._environments = [_make(**environment) for _ in range(count)]
        self._mask_methods = [mask_method(made) for made in self._environments]
        first = self._environments[0]
        self._observation_space, self._action_space = first.observation_space, first.action_space
        self._array_space = observation_array_space(self._observation_space)
        limit = first.spec.max_episode_steps if first.spec is not None else None
        return {
            "observation_space": to_json(from_gymnasium(self._observation_space)),
            "action_space": to_json(from_gymnasium(action_array_space(self._action_space))),
            "max_episode_steps": environment["max_episode_steps"] or limit,
        }

    def do_inspect(self, steps: int) -> dict[str, Any]:
        """Reset and take random steps in the first environment, looking at everything that it returns."""
        environment = self._environments[0]
        self._action_space.seed(0)
        started = False
        masked: bool | None = None
        result: Any = ()
        for _ in range(steps):
            if not started:
                self.doing = "reset"
                result = environment.reset(seed=0)
                check_reset(self._observation_space, result)
            if masked is None:
                masked = self._has_masks(result[-1])
            action = sample_allowed(self._action_space, self._mask(0, result[-1], masked))
            self.doing = "step"
            result = environment.step(action)
            started = not check_step(self._observation_space, result)
        return {"ok": True}

    def do_find_masks(self) -> dict[str, Any]:
        """Find out whether there are action masks: only a reset tells it of an environment without `action_masks`."""
        size = action_mask_size(self._action_space)
        if size and self._mask_methods[0] is None:
            self.doing = "reset"
            _, info = self._environments[0].reset(seed=0)
            size = size if self._has_masks(info) else 0
        return {"mask_size": size}

    def do_map(self, num_envs: int, first: int, mask_size: int) -> dict[str, Any]:
        """Attach the shared arrays."""
        arrays = map_memory(self._memory, num_envs, self._array_space, self._action_space, mask_size)
        own = slice(first, first + len(self._environments))
        self._rows = SharedArrays(*(getattr(arrays, name)[own] for name in SharedArrays.__slots__))
        return {"ok": True}

    def do_start(self) -> dict[str, Any]:
        """Start the episode whose number stands in `episode`, everywhere."""
        for row in range(len(self._environments)):
            self._reset(row)
        return {"ok": True}

    def do_step(self) -> dict[str, Any]:
        """Act once everywhere; where an episode has ended, or the numbers have broken, start the next one."""
        rows = self._mapped
        self.doing = "step"
        for row, environment in enumerate(self._environments):
            observation, reward, terminated, truncated, info = environment.step(self._decode(rows.action[row]))
            rows.final_observation[row] = self._encode(observation)
            rows.reward[row] = reward
            rows.terminated[row] = terminated
            rows.truncated[row] = truncated
            if not (terminated or truncated):  # a finished game may allow nothing
                self._write_mask(row, info)
        sums = rows.final_observation.reshape(len(self._environments), -1).sum(axis=1, dtype=np.float64)
        np.isfinite(sums + rows.reward, out=rows.valid)
        broken = ~rows.valid
        if broken.any():
            rows.final_observation[broken] = 0
            rows.reward[broken] = 0
            rows.terminated[broken] = False
            rows.truncated[broken] = True
        rows.observation[:] = rows.final_observation
        for row in np.flatnonzero(rows.terminated | rows.truncated).tolist():
            rows.episode[row] += 1
            self._reset(row)
        return {"ok": True}

    def close(self) -> None:
        """Let the environments clean up."""
        for environment in self._environments:
            environment.close()

    @property
    def _mapped(self) -> SharedArrays:
        if self._rows is None:
            raise InvalidInput("map must come before start and step")
        return self._rows

    def _reset(self, row: int) -> None:
        rows = self._mapped
        self.doing = "reset"
        seed = episode_seed(int(rows.seed[row]), int(rows.episode[row]))
        observation, info = self._environments[row].reset(seed=seed)
        rows.observation[row] = self._encode(observation)
        self._write_mask(row, info)

    def _write_mask(self, row: int, info: Any) -> None:
        masks = self._mapped.action_mask
        mask = self._mask(row, info, masks.shape[1] > 0)
        if mask is not None:
            masks[row] = mask

    def _has_masks(self, info: Any) -> bool:
        """Whether the first environment has action masks; `info` is that of its first reset."""
        offered = self._mask_methods[0] is not None or info_mask(info) is not None
        return offered and action_mask_size(self._action_space) > 0

    def _mask(self, row: int, info: Any, masked: bool) -> NDArray[np.bool_] | None:
        """The actions that the environment of a row allows now, or None unless it has masks (`masked`)."""
        if not masked:
            if info_mask(info) is not None and action_mask_size(self._action_space):
                raise InvalidInput(
                    f"{self.doing} gave info['action_mask'], the first reset did not; give it always or never"
                )
            return None
        method = self._mask_methods[row]
        if method is None:
            return check_mask(self._action_space, info_mask(info), f"info['action_mask'] of {self.doing}")
        after, self.doing = self.doing, "action_masks"
        mask = method()
        self.doing = after
        return check_mask(self._action_space, mask, f"the result of action_masks after {after}")

    def _decode(self, action: Any) -> Any:
        """A row of actions as the environment wants it; a copy, which user code may keep."""
        match self._action_space:
            case gymnasium.spaces.Discrete() as space:
                return action + space.start
            case gymnasium.spaces.MultiDiscrete() as space:
                return (action + space.start).astype(space.dtype)
            case space:
                return action.astype(space.dtype)

    def _encode(self, observation: Any) -> Any:
        """An observation as an array of the batch; a wrong shape is refused, where NumPy would broadcast it."""
        if isinstance(self._observation_space, gymnasium.spaces.Box):
            array = np.asarray(observation)
        else:
            array = np.asarray(gymnasium.spaces.utils.flatten(self._observation_space, observation))
        if array.shape != self._array_space.shape:
            found, right = list(array.shape), list(self._array_space.shape)
            raise InvalidInput(f"{self.doing} returned an observation of shape {found}; its space has {right}")
        return array


def episode_seed(seed: int, episode: int) -> int:
    """What to pass to `reset`: `seed` itself for episode 0 if Gymnasium can take it, else 31 bits mixed from both."""
    if episode == 0 and 0 <= seed < 2**31:
        return seed
    mixed = np.random.SeedSequence(seed % 2**64, spawn_key=(episode,)).generate_state(1)
    return int(mixed[0]) >> 1


def serve(connection: socket.socket, environments: Environments) -> None:
    """Answer commands until the other side hangs up or a command fails."""
    for line in connection.makefile("rb"):
        request = json.loads(line)
        try:
            answer = getattr(environments, f"do_{request.pop('command')}")(**request)
        except InvalidInput as error:
            answer = {"error": {"kind": "invalid", "message": error.message, "traceback": ""}}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything; it is reported, not hidden
            message = f"{environments.doing} raised {type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
            answer = {"error": {"kind": "user_code", "message": message, "traceback": _user_traceback(error)}}
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _make(
    id: str,  # noqa: A002 - the field's name in EnvironmentSpec
    entry_point: str,
    code_path: str,
    kwargs: dict[str, Any],
    max_episode_steps: int | None,
) -> gymnasium.Env[Any, Any]:
    made: Any
    if id:
        made = gymnasium.make(id, max_episode_steps=max_episode_steps, disable_env_checker=True, **kwargs)
    else:
        made = _load(entry_point, code_path)(**kwargs)
        if not isinstance(made, gymnasium.Env):
            raise InvalidInput(f"{entry_point} returned {type(made).__name__}, not a gymnasium.Env")
        if max_episode_steps is not None:
            made = gymnasium.wrappers.TimeLimit(made, max_episode_steps)
    environment: gymnasium.Env[Any, Any] = made
    return environment


def _load(entry_point: str, code_path: str) -> Any:
    """What `entry_point` names, with `code_path` importable (in this process only)."""
    if code_path and code_path not in sys.path:
        if not Path(code_path).is_dir():
            raise InvalidInput(f"the code folder {code_path!r} does not exist", code_path=code_path)
        sys.path.insert(0, code_path)
    return pkgutil.resolve_name(entry_point)


def _user_traceback(error: BaseException) -> str:
    """The traceback from the user's first line on: our own frames above it say nothing to the user."""
    described = traceback.TracebackException.from_exception(error)
    own = sum(1 for frame in described.stack if frame.filename == __file__)
    del described.stack[:own]
    return "".join(described.format())[-_LONGEST_TRACEBACK:]


def _exit_with_parent(connection: socket.socket) -> None:
    """Wait for the other side's end of the socket to close, then end this process whatever the user's code is doing."""
    hang_up = select.poll()
    hang_up.register(connection, getattr(select, "POLLRDHUP", 0))
    hang_up.poll()
    time.sleep(_CLOSING_S)
    os._exit(1)


def main(socket_descriptor: int, memory: int, parent_pid: int, die_with_thread: bool) -> None:
    """Serve until the parent hangs up."""
    if die_with_thread and sys.platform == "linux":
        # The kernel kills us when the thread that started us ends, so this is asked for only by a main thread.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    os.dup2(2, 1)  # what user code prints must not mix with the output of the command that started us
    connection = socket.socket(fileno=socket_descriptor)
    threading.Thread(target=_exit_with_parent, args=(connection,), daemon=True).start()
    environments = Environments(memory)
    with contextlib.suppress(ConnectionError):  # the parent is gone: nobody is left to tell
        serve(connection, environments)
    environments.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
