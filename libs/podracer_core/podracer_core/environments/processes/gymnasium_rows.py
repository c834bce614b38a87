"""Gymnasium environments as rows of a batch, one after the other, or each in a thread of its own
where they wait more than they compute, so that the waits of a step overlap; torch is not imported.
Each has a number that no other on this machine has, for ports and such."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import itertools
import math
import os
import platform
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import NDArray

from podracer_core.environments.processes.checker import (
    Checker,
    require_environment,
    required_space,
)
from podracer_core.environments.processes.exchange import SharedArrays
from podracer_core.environments.processes.row_codec import (
    NotFinite,
    action_reader,
    check_frame,
    check_reset,
    check_step,
    flag_of,
    number_of,
    observation_writer,
)
from podracer_core.environments.processes.rows import (
    IN_A_ROW,
    Rows,
    describe_spaces,
    episode_seed,
    name_number,
)
from podracer_core.environments.spaces import (
    action_mask_size,
    check_mask,
    info_mask,
    mask_method,
    observation_array_space,
    sample_allowed,
    without_texts,
)
from podracer_core.errors import InvalidInput, TimeUp


class InThread(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is made, reset, stepped and closed in one thread, which some libraries
    demand."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        """Begins to make the environment; `wait_until_made` comes next."""
        self._thread = ThreadPoolExecutor(1)
        self._made = self._thread.submit(make)
        self._result: Future[Any] | None = None

    def wait_until_made(self) -> Self:
        """Itself. Raises what the construction raised."""
        super().__init__(self._made.result())
        return self

    def begin(self, action: Any) -> Any:
        """Begin a step, whose result the next call of `step` returns."""
        self._result = self._thread.submit(self.env.step, action)
        return action

    def step(self, action: Any) -> Any:
        """The result of the step that has begun, or of this one."""
        result, self._result = self._result or self._thread.submit(self.env.step, action), None
        return result.result()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env.reset`."""
        return self._thread.submit(self.env.reset, seed=seed).result()

    def close(self) -> None:
        """Close the environment once it is made, and end the thread."""
        try:
            self._thread.submit(self._made.result().close).result()
        finally:
            self._thread.shutdown()


_FRAMES_PER_SECOND = 30.0
_NO_LIMIT = np.iinfo(np.int64).max


class _TimeLimits:
    """After how many steps the rows' episodes end: the lower of the job's limit and `own`, which
    the wrappers had, or never.

    Counted in steps of the batch, so that nearly every step has only one number to look at."""

    def __init__(self, own: Sequence[int], jobs: int | None) -> None:
        self._job = jobs or _NO_LIMIT
        self.steps = 0
        self._limits = [min(limit, self._job) for limit in own]
        self._began_at = [0] * len(own)  # the present episode in each row
        self._last_step = np.full(len(own), _NO_LIMIT)  # of the present episode in each row
        self._nearest_last_step = _NO_LIMIT

    def of(self, row: int) -> int | None:
        """The row's limit, if there is one."""
        return self._limits[row] if self._limits[row] < _NO_LIMIT else None

    def replace(self, row: int, own: int) -> None:
        """The row's environment is another one."""
        self._limits[row] = min(own, self._job)

    def begin(self, row: int) -> None:
        """Begin an episode of the row."""
        self._began_at[row] = self.steps
        if self._limits[row] < _NO_LIMIT:
            self._last_step[row] = self.steps + self._limits[row]

    def elapsed(self, row: int) -> int:
        """Steps of the row's episode."""
        return self.steps - self._began_at[row]

    def count(self, truncated: NDArray[np.bool_]) -> bool:
        """Count a step; whether an episode has reached its limit, and is `truncated`."""
        self.steps += 1
        if self.steps < self._nearest_last_step:
            return False
        np.logical_or(truncated, self._last_step <= self.steps, out=truncated)
        return True

    def set_ages(self, ages: NDArray[np.int64]) -> bool:
        """See `Rows.set_ages`."""
        limited = np.array(self._limits) < _NO_LIMIT
        self._last_step[limited] -= ages[limited]
        self.look()
        return bool(limited.all())

    def end(self, rows: Sequence[int]) -> None:
        """The rows have no episode."""
        self._last_step[rows] = _NO_LIMIT

    def look(self) -> None:
        """Episodes have begun or ended."""
        self._nearest_last_step = int(self._last_step.min())


class _Finite:
    """Whether the numbers of rows are finite: their sum, of each times a small number, is too."""

    def __init__(self, arrays: SharedArrays) -> None:
        self._reward = arrays.reward
        self._final = arrays.final_observation.reshape(-1)
        self._first = arrays.observation.reshape(self._reward.size, -1)
        self._is_bytes = self._final.dtype != np.float32
        size = self._reward.size if self._is_bytes else self._final.size
        self._small = np.full(size, 2.0**-64, np.float32)

    def step(self) -> bool:
        """Whether those of a step are, in all rows."""
        total = float(self._reward.dot(self._small[: self._reward.size]))
        if not self._is_bytes:
            total += float(self._final.dot(self._small))
        return math.isfinite(total)

    def start(self, row: int) -> bool:
        """Whether those of the row's first observation are."""
        numbers = self._first[row]
        return self._is_bytes or math.isfinite(numbers.dot(self._small[: numbers.size]))


class GymnasiumRows(Rows):
    """One environment a row. With `pictures`, row 0 is drawn after every reset and step."""

    def __init__(
        self,
        environments: Sequence[gymnasium.Env[Any, Any]],
        max_episode_steps: int | None,
        pictures: bool,
        make: Callable[[int], gymnasium.Env[Any, Any]],
        origin: Sequence[float] = (),
        held: Iterable[Any] = (),
    ) -> None:
        """`max_episode_steps` applies in addition to the environments' own limits. `make`: makes
        another environment for a row, after an exception. `origin`: of the observations. `held` is
        closed with them."""
        super().__init__()
        self.observation_space, self._texts = without_texts(
            required_space(environments[0], "observation_space")
        )
        self.action_space = required_space(environments[0], "action_space")
        unwrapped = [_unwrap(environment) for environment in environments]
        self._environments = [environment for environment, _ in unwrapped]
        self._make, self._held = make, held
        self._limits = _TimeLimits([limit for _, limit in unwrapped], max_episode_steps)
        # A limit in a deeper wrapper is that wrapper's business, but it may be registered with the
        # id.
        registered = environments[0].spec
        self._registered_limit = registered.max_episode_steps if registered is not None else None
        # rows whose environment raised: it is made anew before the next episode
        self._ruined: set[int] = set()
        self._mask_methods = [mask_method(made) for made in self._environments]
        self._pictures = pictures
        self._frame: Any = None
        self.count = len(self._environments)
        self._acting_rows: Sequence[int] = range(self.count)  # but for those that stand still
        self._plays_once = False
        self._can_have_masks = action_mask_size(self.action_space) > 0
        array_space = observation_array_space(self.observation_space)
        self._write_observation = observation_writer(
            self.observation_space, array_space, lambda: self.doing, origin
        )
        self._read_actions = action_reader(self.action_space)

    def describe(self) -> dict[str, Any]:
        """See `Rows.describe`."""
        first = self._environments[0]
        if self._pictures and first.render_mode != "rgb_array":
            raise InvalidInput(
                "it cannot be filmed: with render_mode='rgb_array' it came with "
                f"{first.render_mode!r}; an environment that can be filmed gives its pictures as "
                "arrays from render()"
            )
        return {
            **describe_spaces(self.observation_space, self.action_space),
            "max_episode_steps": self._limits.of(0) or self._registered_limit,
            "frames_per_second": float(first.metadata.get("render_fps") or _FRAMES_PER_SECOND),
        }

    def inspect(self) -> dict[str, Any]:
        """See `Rows.inspect`: the first environment only."""
        offers_masks: bool | None = None  # unknown before the first reset

        def sample_action(info: Any) -> Any:
            nonlocal offers_masks
            if offers_masks is None:
                offers_masks = self._offers_masks(info)
            return sample_allowed(self.action_space, self._mask(0, info, offers_masks))

        report = Checker(
            self._environments[0], self.observation_space, sample_action, self._tell
        ).report()
        left_out = [f"{name!r} is left out of the observations: it is text" for name in self._texts]
        return {**report, "warnings": left_out + report["warnings"]}

    def _tell(self, doing: str) -> None:
        self.doing = doing

    def has_action_mask(self) -> bool:
        """See `Rows.has_action_mask`: for an environment without `action_masks` it is known only
        after a reset."""
        if self._mask_methods[0] is not None:
            return True
        self.doing = "reset"
        _, info = self._environments[0].reset(seed=0)
        return self._offers_masks(info)

    def map(self, memory: int, num_envs: int, first: int, mask_size: int) -> None:
        """See `Rows.map`."""
        super().map(memory, num_envs, first, mask_size)
        self._finite = _Finite(self.arrays)

    def start(self) -> None:
        """See `Rows.start`."""
        self._acting_rows = range(self.count)
        self._plays_once = False
        for row in range(self.count):
            self._reset(row)
        self._limits.look()
        self._draw()

    def set_ages(self, ages: bytes) -> bool:
        """See `Rows.set_ages`: impossible if the limit is in a wrapper that stays, or in the
        environment itself."""
        return self._limits.set_ages(np.frombuffer(ages, np.int64))

    def play_once(self) -> bool:
        """See `Rows.play_once`."""
        self._plays_once = True
        return True

    def step(self) -> None:
        """See `Rows.step`. After numbers that are not finite, the next episode starts, too."""
        rows = self.arrays
        ended = self._act(rows)
        self.breaks.worked = True
        ended |= self._limits.count(rows.truncated)
        if not self._finite.step():
            self._set_aside_broken_rows(rows)
            ended = True
        self._draw()
        finished = np.flatnonzero(rows.terminated | rows.truncated).tolist() if ended else []
        if self._plays_once:
            if finished:
                self._stand_still(finished)
            going_on = self._acting_rows
            rows.observation[going_on] = rows.final_observation[going_on]
        else:
            rows.observation[:] = rows.final_observation
            for row in finished:
                rows.episode[row] += 1
                self._reset(row)
        if finished:
            self._limits.look()

    def frame(self) -> NDArray[np.uint8]:
        """See `Rows.frame`."""
        frame: NDArray[np.uint8] = check_frame(self._frame)
        return frame

    def close(self) -> None:
        """See `Rows.close`: each is closed, even if another one fails."""
        for each in [*self._environments, *self._held]:
            self._close(each)

    def _close(self, each: Any) -> None:
        try:
            each.close()
        except Exception:  # noqa: BLE001 - user code may raise anything; no caller waits for an answer
            traceback.print_exc(file=sys.stderr)

    def _act(self, rows: SharedArrays) -> bool:
        """Act in all rows; returns whether an environment has ended an episode itself."""
        self.doing = "step"
        ended = False
        rows.terminated.fill(False)
        rows.truncated.fill(False)
        rows.valid.fill(True)
        actions, acting = rows.action, self._environments
        if len(self._acting_rows) < self.count:
            rows.reward.fill(0.0)
            actions = actions[self._acting_rows]
            acting = [acting[row] for row in self._acting_rows]
        masked = rows.action_mask.shape[1] > 0
        write = self._write_observation
        final_observation = rows.final_observation
        rewards: Any = rows.reward.data  # takes numbers only; NumPy would take None and text
        looks_at_info, check = self._can_have_masks, self.check
        result: Any = None
        row = -1
        read = self._read_actions(actions)
        if acting and isinstance(acting[0], InThread):
            read = [
                cast("InThread", each).begin(action)
                for each, action in zip(acting, read, strict=True)
            ]
        turns = zip(self._acting_rows, acting, read, strict=True)
        while True:
            try:
                for row, environment, action in turns:
                    if check is not None:
                        check()
                    result = environment.step(action)
                    observation, reward, terminated, truncated, info = result
                    write(final_observation, row, observation)
                    try:
                        rewards[row] = reward
                    except (TypeError, OverflowError):
                        rewards[row] = number_of(reward)
                    if terminated is not False or truncated is not False:
                        terminated = flag_of("terminated", terminated)
                        truncated = flag_of("truncated", truncated)
                    if terminated or truncated:
                        rows.terminated[row] = terminated
                        rows.truncated[row] = truncated
                        ended = True
                    elif looks_at_info and (masked or info):  # a finished game may allow nothing
                        self._write_mask(row, info)
                return ended
            except TimeUp:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                self._break_off(rows, row, result, error)
                ended = True  # and the rows after this one take their turns

    def _break_off(self, rows: SharedArrays, row: int, result: Any, error: BaseException) -> None:
        """End the row's episode after an exception, or after a `result` of the wrong form. Raises
        it if nothing has worked yet, or if it is not tolerated."""
        if (
            isinstance(error, TypeError | ValueError)
            and error.__traceback__
            and error.__traceback__.tb_next is None
        ):
            try:
                check_step(self.observation_space, result)
            except InvalidInput as wrong:  # not raised by user code: its result has the wrong form
                error = wrong
        if not self.breaks.worked and row == self._acting_rows[0]:
            raise error
        self._note(row, self._limits.elapsed(row) + 1, error, self._limits.steps)
        self.doing = "step"
        rows.final_observation[row] = rows.observation[row]
        rows.break_off(row)

    def _stand_still(self, finished: Sequence[int]) -> None:
        """The rows continue to show the last observation they acted on, to which their masks
        belong."""
        self._limits.end(finished)
        self._acting_rows = [row for row in self._acting_rows if row not in finished]

    def _set_aside_broken_rows(self, rows: SharedArrays) -> None:
        """A row with NaN or infinity counts as truncated and not valid, and shows zeros."""
        finite = np.isfinite(rows.reward)
        finite &= np.isfinite(rows.final_observation.reshape(self.count, -1)).all(axis=1)
        broken = ~finite
        for row in np.flatnonzero(broken).tolist():
            what = name_number(float(rows.reward[row]), rows.final_observation[row])
            self.breaks.note(row, self._limits.elapsed(row), what)
        rows.final_observation[broken] = 0
        rows.break_off(broken)

    def _reset(self, row: int) -> None:
        """Start the row's episode, or the next one whose start does not break; the third in a row
        raises."""
        failure: BaseException | None = None
        if self.check is not None:
            self.check()
        for _ in range(IN_A_ROW):
            self.breaks.begun += 1
            try:
                if row in self._ruined:
                    self._renew(row)
                return self._begin(row)
            except (Exception, SystemExit) as error:
                if not self.breaks.worked and not isinstance(error, NotFinite):
                    raise
                self._note(row, 0, error, self._limits.steps - 1)
                failure = error
            self.arrays.episode[row] += 1
        if isinstance(failure, NotFinite):
            raise InvalidInput(f"reset failed {IN_A_ROW} times in a row: {failure.message}")
        assert failure is not None, "it was not left before"
        raise failure

    def _note(self, row: int, step: int, error: BaseException, now: int) -> None:
        """Note what broke a row in step `now` of the batch. Raises it if it is not tolerated."""
        if isinstance(error, InvalidInput):
            self.breaks.note(row, step, error.message)
        else:
            self.breaks.fail(row, step, self._seed(row), now, error)
            self._ruined.add(row)

    def _begin(self, row: int) -> None:
        self.doing = "reset"
        result: Any = self._environments[row].reset(seed=self._seed(row))
        if not (isinstance(result, tuple) and len(result) == 2):
            check_reset(self.observation_space, result)
        observation, info = result
        self._write_observation(self.arrays.observation, row, observation)
        self._limits.begin(row)
        self._write_mask(row, info)
        if not self._finite.start(row) and (what := name_number(0.0, self.arrays.observation[row])):
            raise NotFinite(what)

    def _seed(self, row: int) -> int:
        """The seed of the row's present episode."""
        return episode_seed(int(self.arrays.seed[row]), int(self.arrays.episode[row]))

    def _renew(self, row: int) -> None:
        """Make another environment in the place of one that raised."""
        self._close(self._environments[row])
        self.doing = "construction"
        self._environments[row], limit = _unwrap(self._make(row))
        self._limits.replace(row, limit)
        self._mask_methods[row] = mask_method(self._environments[row])
        self._ruined.remove(row)

    def _draw(self) -> None:
        if self._pictures:
            doing, self.doing = self.doing, "render"
            self._frame = self._environments[0].render()
            self.doing = doing

    def _write_mask(self, row: int, info: Any) -> None:
        masks = self.arrays.action_mask
        mask = self._mask(row, info, masks.shape[1] > 0)
        if mask is not None:
            masks[row] = mask

    def _offers_masks(self, info: Any) -> bool:
        """Whether the first environment has action masks; `info` is that of its first reset."""
        offered = self._mask_methods[0] is not None or info_mask(info) is not None
        return offered and self._can_have_masks

    def _mask(self, row: int, info: Any, masked: bool) -> NDArray[np.bool_] | None:
        """The actions that the environment of a row allows now, or None unless it has masks
        (`masked`)."""
        if not masked:
            if self._can_have_masks and info_mask(info) is not None:
                raise InvalidInput(
                    f"{self.doing} gave info['action_mask'], the first reset did not; give it "
                    "always or never"
                )
            return None
        method: Callable[[], Any] | None = self._mask_methods[row]
        if method is None:
            return check_mask(
                self.action_space, info_mask(info), f"info['action_mask'] of {self.doing}"
            )
        after, self.doing = self.doing, "action_masks"
        mask = method()
        self.doing = after
        return check_mask(self.action_space, mask, f"the result of action_masks after {after}")


def _unwrap(environment: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], int]:
    """The environment without the outer wrappers that `gymnasium.make` puts on, and the lowest of
    their time limits.

    Each costs a call at every step, for checks that the rows do themselves: they reset before they
    step and count steps."""
    lowest = _NO_LIMIT
    while isinstance(environment, gymnasium.Wrapper):
        if type(environment) is TimeLimit:
            limit = getattr(environment, "_max_episode_steps", None)
            if not isinstance(limit, int):
                break
            lowest = min(lowest, limit)
        elif type(environment) is not OrderEnforcing:
            break
        environment = environment.env
    return environment, lowest


_Environment = gymnasium.Env[Any, Any]
VARIABLE = "PODRACER_ENVIRONMENT_INDEX"
"""The variable of a child process with the index of its first environment."""
_ARGUMENT = "environment_index"
_ADVICE = (
    "if each environment needs a port or a number of its own, let the constructor take the "
    f"argument {_ARGUMENT}: it is different in all environments that are open on this machine"
)


class EnvironmentIndex:
    """The lowest free number, from 0, until `close` or the end of the process."""

    def __init__(self) -> None:
        marks = ((number, _mark(f"podracer-environment-{number}")) for number in itertools.count())
        self.number, self._mark = next((number, mark) for number, mark in marks if mark is not None)

    def close(self) -> None:
        """Let another environment have the number."""
        os.close(self._mark)


def _mark(name: str) -> int | None:
    """A descriptor that marks `name` as taken while it is open; None if another one does.

    In Linux it is a name in the kernel's table of sockets. Its scope is that of ports: all
    containers of a pod and all users of a machine share it."""
    if platform.system() == "Linux":
        with socket.socket(socket.AF_UNIX) as ours:
            try:
                ours.bind(f"\0{name}")
            except OSError:
                return None
            return ours.detach()
    file = os.open(Path(tempfile.gettempdir(), name), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def open_gymnasium(
    make: Callable[..., Any], environment: Mapping[str, Any], count: int, pictures: bool, *,
    first: EnvironmentIndex | None = None, in_threads: bool = False,
    tell: Callable[[int], None] = lambda made: None,
) -> GymnasiumRows:  # fmt: skip
    """Rows of `count` environments that `make` makes with the arguments of `environment`
    (`EnvironmentSpec.to_json`), each with an index, of which one may be there, if the constructor
    names an argument for it.

    `in_threads`: each in a thread of its own, at the same time. `tell` gets how many there are by
    now."""
    name, kwargs = environment["id"] or environment["entry_point"], dict(environment["kwargs"])
    if pictures:
        if not _takes(make, "render_mode", in_rest=True):
            raise InvalidInput(
                "it cannot be filmed: it takes no argument render_mode, as Gymnasium's "
                "environments do"
            )
        kwargs = {"render_mode": "rgb_array"} | kwargs
    constructor: Any = inspect.unwrap(make)
    if isinstance(constructor, partial) and constructor.func is gymnasium.make:
        (spec,) = constructor.args
        if isinstance(spec, str):
            module, _, registered = spec.rpartition(":")
            if module:
                importlib.import_module(module)  # it registers the id
            spec = gymnasium.spec(registered)
        entry_point = spec.entry_point
        constructor = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    named = _takes(constructor, _ARGUMENT)
    indices = [first] if first else []
    while named and len(indices) < count:
        indices.append(EnvironmentIndex())

    def make_row(row: int) -> _Environment:
        own = {_ARGUMENT: indices[row].number} if named else {}
        return require_environment(make(**{**own, **kwargs}), name)

    def make_in_thread(row: int) -> InThread:
        return InThread(partial(make_row, row))

    begun = [make_in_thread(row) for row in range(count)] if in_threads else []
    made: list[_Environment] = []
    try:
        for row in range(count):
            made.append(begun[row].wait_until_made() if begun else make_row(row))
            tell(row + 1)
        if any(each.unwrapped is made[0].unwrapped for each in made[1:]):
            raise InvalidInput(
                f"{name} gave the same environment twice; it has to make a new one each time"
            )
    except BaseException as error:
        with contextlib.suppress(Exception):  # an error may have no words
            if "in use" in str(error) and not named:
                error.add_note(_ADVICE)
        for each in [*(begun or made), *indices]:  # a simulator that exists once is free again then
            with contextlib.suppress(Exception):
                each.close()
        raise
    again = (lambda row: make_in_thread(row).wait_until_made()) if in_threads else make_row
    limit, origin = environment["max_episode_steps"], environment["observation_origin"]
    return GymnasiumRows(made, limit, pictures, again, origin, indices)


def _takes(make: Callable[..., Any], name: str, *, in_rest: bool = False) -> bool:
    """Whether a class or function has an argument of that name; `in_rest`: or takes any."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # of a class in C, say
        return False
    return name in parameters or (
        in_rest and any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    )
