"""One episode of an environment as an MP4 file. Needs the extra `podracer-core[video]`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

from podracer_core.catalogue.environments import EnvironmentSpec, find_environment
from podracer_core.environments.processes.local_rows import MakeEnvironment
from podracer_core.environments.processes.preprocess import PreprocessVecEnv
from podracer_core.environments.registry import batched_class, gymnasium_spec
from podracer_core.environments.spaces import observation_array_space, to_gymnasium
from podracer_core.errors import InvalidInput, PreconditionFailed

_STEP_LIMIT = 10_000


class Recording(NamedTuple):
    """What was filmed: the file, how many pictures it has (one more than steps were taken), and the episode's return.

    `complete` is false where `step_limit`, or the death of the environment's process, cut the episode off.
    """

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
    """Film the episode that `reset` starts with `seed`, until it ends or `step_limit` steps are taken.

    `act` takes the observation [1, *obs] and the allowed actions [1, n] (or None) and gives the action [1, …]. The
    pictures are Gymnasium's, drawn with render_mode "rgb_array" in the environment's own process; a built-in
    environment is played in Gymnasium's of the same id. `make` makes it in this process instead. `path` appears when
    the file is complete.

    Raises InvalidInput where there is nothing to draw the environment, PreconditionFailed where the extra is missing,
    and whatever `PreprocessVecEnv` raises.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise InvalidInput(f"videos are MP4 files: {path.name!r} should end with .mp4", path=path)
    try:
        av = importlib.import_module("av")
    except ImportError as error:
        message = f"videos need the extra podracer-core[video]: {error}"
        raise PreconditionFailed(message, reason="NOT_INSTALLED") from error
    filmed_spec = spec if make is not None else _filmed_spec(spec)
    environment = PreprocessVecEnv(filmed_spec, 1, processes=1, step_timeout_s=step_timeout_s, pictures=True, make=make)
    unfinished = path.with_name(f".{path.stem}.unfinished.mp4")
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
            raise InvalidInput(f"render gave a picture of {list(frame.shape)} after one of {list(first.shape)}")
        encoder.add(frame)
        frames += 1
        if step.terminated or step.truncated:
            return frames, episode_return, True
    return frames, episode_return, False


class _Encoder:
    """Writes pictures, uint8 [height, width, 3], into a file as H.264 video."""

    def __init__(self, av: Any, path: Path, frames_per_second: float) -> None:
        self._frame = av.VideoFrame.from_ndarray
        self._container = av.open(path, "w")
        self._rate = Fraction(frames_per_second).limit_denominator(1000)
        self._stream: Any = None

    def add(self, picture: Tensor) -> None:
        """Append one picture. Odd sides are stretched by one pixel: the format wants even ones."""
        frame = self._frame(picture.numpy())
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate, options={"crf": "25"})
            self._stream.width, self._stream.height = frame.width + frame.width % 2, frame.height + frame.height % 2
            self._stream.pix_fmt = "yuv420p"
        even = frame.reformat(self._stream.width, self._stream.height, self._stream.pix_fmt)
        self._container.mux(self._stream.encode(even))

    def finish(self) -> None:
        """Write what the encoder still holds."""
        self._container.mux(self._stream.encode())

    def close(self) -> None:
        self._container.close()


def _filmed_spec(spec: EnvironmentSpec) -> EnvironmentSpec:
    """What to play before the camera: the environment itself, or Gymnasium's of the same id."""
    if batched_class(spec) is None:
        return gymnasium_spec(spec)
    if spec.id not in gymnasium.registry:
        raise InvalidInput(f"nothing draws {spec.id}: it is batched, and Gymnasium has none of this id", id=spec.id)
    # The arguments have Gymnasium's names, but not always its defaults.
    defaults = {argument.name: argument.default for argument in find_environment(spec.id).arguments}
    return replace(spec, kwargs=defaults | dict(spec.kwargs))


def _check_spaces(spec: EnvironmentSpec, environment: PreprocessVecEnv) -> None:
    """InvalidInput if Gymnasium's environment shows something else than the one that it stands for."""
    expected = find_environment(spec.id).observation_space if spec.id else None
    if expected is None:
        return
    right, found = observation_array_space(to_gymnasium(expected)).shape, environment.observation_space.shape
    if found != right:
        raise InvalidInput(f"{spec.id} cannot be filmed: it shows {right}, Gymnasium's environment of this id {found}")
