"""One episode of an environment as an MP4 file or a GIF. Needs the extra `podracer-core[video]`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

from podracer_core.catalogue import EnvironmentSpec, find_environment
from podracer_core.environments.processes import MakeEnvironment, PreprocessVecEnv
from podracer_core.environments.registry import batched_class, gymnasium_spec
from podracer_core.environments.spaces import observation_array_space, to_gymnasium
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_core.native import draws_with_mujoco, set_up_offscreen

_STEP_LIMIT = 10_000
_ENGINE = "engine"  # of ours alone: what computes the physics


class _Form(NamedTuple):
    codec: str
    pixels: str
    options: dict[str, str]
    most_frames_per_second: float


_FORMS = {
    ".mp4": _Form("libx264", "yuv420p", {"crf": "25"}, math.inf),
    ".gif": _Form("gif", "rgb8", {}, 25.0),  # some viewers slow down what is faster
}


class Recording(NamedTuple):
    """A video: the file, its pictures (one more than steps were taken), and the episode's return.

    `complete` is false where `step_limit`, or the death of the environment's process, cut the
    episode off."""

    path: Path
    frames: int
    episode_return: float
    complete: bool


def record_video(
    spec: EnvironmentSpec,
    act: Callable[[Tensor, Tensor | None], Tensor],
    path: Path | str,
    *,
    seed: int = 0,
    step_limit: int = _STEP_LIMIT,
    step_timeout_s: float = 60.0,
    make: MakeEnvironment | None = None,
) -> Recording:
    """Film the episode that `reset` starts with `seed`, until it ends or `step_limit` steps are
    taken.

    `act` takes the observation [1, *obs] and the allowed actions [1, n] (or None) and gives the
    action [1, …]. The pictures are Gymnasium's, drawn with render_mode "rgb_array" in the
    environment's own process; a built-in environment is played in Gymnasium's of the same id.
    `make` makes it in this process instead. `path` ends with .mp4 or .gif (at most 25 of the
    pictures a second) and appears when the file is complete.

    Raises InvalidInput where there is nothing to draw the environment, PreconditionFailed where the
    extra is missing or MuJoCo cannot draw here, and whatever `PreprocessVecEnv` raises."""
    path = Path(path)
    if path.suffix not in _FORMS:
        raise InvalidInput(
            f"videos are MP4 files or GIFs: {path.name!r} should end with .mp4 or .gif", path=path
        )
    try:
        av = importlib.import_module("av")
    except ImportError as error:
        message = f"videos need the extra podracer-core[video]: {error}"
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    filmed_spec = spec if make is not None else _filmed_spec(spec)
    if filmed_spec.id in gymnasium.registry and draws_with_mujoco(
        str(gymnasium.spec(filmed_spec.id).entry_point)
    ):
        set_up_offscreen()
    environment = PreprocessVecEnv(
        filmed_spec, 1, processes=1, step_timeout_s=step_timeout_s, pictures=True, make=make
    )
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        _check_spaces(spec, environment)
        with contextlib.closing(_Encoder(av, unfinished, environment.frames_per_second)) as encoder:
            filmed = _film(environment, act, seed, step_limit, encoder)
            encoder.finish()
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
        environment.close()
    return Recording(path, *filmed)


def _film(
    environment: PreprocessVecEnv,
    act: Callable[[Tensor, Tensor | None], Tensor],
    seed: int,
    step_limit: int,
    encoder: _Encoder,
) -> tuple[int, float, bool]:
    observation = environment.reset(torch.tensor([seed]))
    first = environment.frame()
    encoder.add(first)
    frames, episode_return = 1, 0.0
    for _ in range(step_limit):
        step = environment.step(act(observation, environment.action_mask))
        observation = step.observation
        episode_return += float(step.reward)
        if not step.valid:
            return frames, episode_return, False
        frame = environment.frame()
        if frame.shape != first.shape:
            raise InvalidInput(
                f"render gave a picture of {list(frame.shape)} after one of {list(first.shape)}"
            )
        encoder.add(frame)
        frames += 1
        if step.terminated or step.truncated:
            return frames, episode_return, True
    return frames, episode_return, False


class _Encoder:
    """Writes pictures, uint8 [height, width, 3], into a file as its ending says."""

    def __init__(self, av: Any, path: Path, frames_per_second: float) -> None:
        self._frame = av.VideoFrame.from_ndarray
        self._container = av.open(path, "w")
        self._form = _FORMS[path.suffix]
        self._stride = math.ceil(frames_per_second / self._form.most_frames_per_second) or 1
        self._rate = Fraction(frames_per_second / self._stride).limit_denominator(1000)
        self._stream: Any = None
        self._count = 0

    def add(self, picture: Tensor) -> None:
        """Append one picture. Odd sides are stretched by one pixel: MP4 wants even ones."""
        self._count += 1
        if (self._count - 1) % self._stride:
            return
        frame = self._frame(picture.numpy())
        if self._stream is None:
            self._stream = self._container.add_stream(
                self._form.codec, rate=self._rate, options=self._form.options
            )
            self._stream.width = frame.width + frame.width % 2
            self._stream.height = frame.height + frame.height % 2
            self._stream.pix_fmt = self._form.pixels
        even = frame.reformat(self._stream.width, self._stream.height, self._stream.pix_fmt)
        self._container.mux(self._stream.encode(even))

    def finish(self) -> None:
        """Write what the encoder still holds."""
        self._container.mux(self._stream.encode())

    def close(self) -> None:
        self._container.close()


def _filmed_spec(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The environment to film: the environment itself, or Gymnasium's of the same id."""
    if batched_class(spec) is None:
        return gymnasium_spec(spec)
    if spec.id not in gymnasium.registry:
        message = (
            f"{spec.id} cannot be filmed: it is batched, and Gymnasium has no environment "
            "with this id"
        )
        raise InvalidInput(message, id=spec.id)
    # The arguments have Gymnasium's names, but not always its defaults; bounds that are infinite
    # are Gymnasium's too.
    arguments = {
        each.name: each.default
        for each in find_environment(spec.id).arguments
        if each.name != _ENGINE
    }
    taken = _constructor_parameters(spec.id)
    given = {
        name: value
        for name, value in spec.kwargs.items()
        if name != _ENGINE and value != arguments.get(name)
    }
    if ours := sorted(given.keys() - taken):
        message = f"Gymnasium's environment does not take {', '.join(ours)}"
        raise InvalidInput(f"{spec.id} cannot be filmed with these arguments: {message}")
    kept = {
        name: value for name, value in arguments.items() if name in taken and _is_strict_json(value)
    }
    return replace(spec, kwargs=kept | given)


def _constructor_parameters(environment_id: str) -> set[str]:
    """Arguments of a Gymnasium class, those of its parents' constructors included."""
    made: Any = gymnasium.envs.registration.load_env_creator(
        str(gymnasium.spec(environment_id).entry_point)
    )
    constructors = [each.__init__ for each in made.__mro__ if "__init__" in vars(each)]
    return {
        name for constructor in constructors for name in inspect.signature(constructor).parameters
    }


def _is_strict_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _check_spaces(spec: EnvironmentSpec, environment: PreprocessVecEnv) -> None:
    """InvalidInput if Gymnasium's environment shows something else than the one that it stands
    for."""
    expected = find_environment(spec.id).observation_space if spec.id else None
    if expected is None:
        return
    right = observation_array_space(to_gymnasium(expected)).shape
    found = environment.observation_space.shape
    if found != right:
        raise InvalidInput(
            f"{spec.id} cannot be filmed: it shows {right}, Gymnasium's environment of this id "
            f"{found}"
        )
