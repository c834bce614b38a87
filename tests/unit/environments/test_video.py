"""One episode as a file that a player can show."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core import native
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.environments import _filmed_spec, record_video
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import InvalidInput, PreconditionFailed, UserCodeFailed
from support.errors import raises

FOLDER = str(Path(__file__).parent)


def film_spec(**kwargs: Any) -> EnvironmentSpec:
    return EnvironmentSpec(entry_point="user_environments:Film", code_path=FOLDER, kwargs=kwargs)


def decode(path: Path) -> tuple[np.ndarray, float]:
    """The pictures, uint8 [frames, height, width, 3], and how many a second has."""
    with av.open(path) as container:
        rate = float(container.streams.video[0].average_rate)
        return np.stack(
            [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        ), rate


def still(observation: Tensor, mask: Tensor | None) -> Tensor:
    return torch.zeros(1, dtype=torch.int64)


def test_cartpole(tmp_path):
    """The built-in one is played in Gymnasium's: the same episode, with as many pictures as it has
    states."""
    reference = gymnasium.make("CartPole-v1")
    reference.reset(seed=7)
    steps = 1
    while not reference.step(0)[2]:
        steps += 1
    path = tmp_path / "cart.mp4"
    recording = record_video(EnvironmentSpec("CartPole-v1"), still, path, seed=7)
    assert recording == (path, steps + 1, steps, True)
    frames, _ = decode(path)
    assert frames.shape == (steps + 1, 400, 600, 3)
    assert (frames[0] != frames[-1]).any()
    assert list(tmp_path.iterdir()) == [path]


def test_the_last_picture_is_that_of_the_end(tmp_path):
    """Not of the next episode, which has begun by then. Odd sides are made even, as the format
    wants it."""
    recording = record_video(film_spec(), still, tmp_path / "film.mp4")
    assert (recording.frames, recording.episode_return, recording.complete) == (5, 6.0, True)
    frames, rate = decode(recording.path)
    assert frames.shape == (5, 40, 52, 3)
    brightness = frames.reshape(5, -1).mean(axis=1)
    np.testing.assert_allclose(brightness, [0, 60, 120, 180, 240], atol=4)
    assert rate == 10
    cut = record_video(film_spec(), still, tmp_path / "film.mp4", step_limit=2)
    assert (cut.frames, cut.complete) == (3, False)


def test_a_gif_has_at_most_25_pictures_a_second(tmp_path):
    recording = record_video(EnvironmentSpec("CartPole-v1"), still, tmp_path / "cart.gif", seed=7)
    frames, rate = decode(recording.path)
    assert (len(frames), rate) == ((recording.frames + 1) // 2, 25)
    assert (tmp_path / "cart.gif").read_bytes()[:6] == b"GIF89a"
    assert len(decode(record_video(film_spec(), still, tmp_path / "film.gif").path)[0]) == 5


def test_every_built_in_environment_has_its_counterpart():
    """What Gymnasium's constructors take; nothing is drawn."""
    for name in BUILT_IN_ENVIRONMENTS:
        if name in gymnasium.registry:
            gymnasium.make(
                name, render_mode="rgb_array", **_filmed_spec(EnvironmentSpec(name)).kwargs
            ).close()


def test_mujoco_is_drawn_without_a_screen(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    act = partial(torch.zeros, 1, 3)
    try:
        recording = record_video(
            EnvironmentSpec("Hopper-v5"),
            lambda observation, mask: act(),
            tmp_path / "hopper.mp4",
            step_limit=2,
        )
    except PreconditionFailed as error:
        assert error.reason == "NO_RENDERER"
        pytest.skip(error.message)
    frames, _ = decode(recording.path)
    assert (len(frames), recording.complete) == (3, False)
    assert frames[0].std() > 10, "something is to be seen"


def test_where_nothing_draws_one_message_says_what_to_install(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(
        native, "_TRIAL", "import os; raise OSError('no ' + os.environ['MUJOCO_GL'])"
    )
    native.working_backend.cache_clear()
    with raises(PreconditionFailed, "NO_RENDERER"):
        native.set_up_offscreen()
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    native.set_up_offscreen()
    assert os.environ["MUJOCO_GL"] == "glfw", "what is set stays"


@pytest.mark.parametrize(
    ("spec", "error", "complaint"),
    [
        (
            film_spec(trouble="list"),
            InvalidInput,
            r"render must return an array uint8 \[height, width, 3\], not list",
        ),
        (
            film_spec(trouble="size"),
            InvalidInput,
            r"a picture of \[40, 52, 3\] after one of \[40, 50, 3\]",
        ),
        (film_spec(trouble="raise"), UserCodeFailed, "render raised RuntimeError: no light"),
        (
            film_spec(trouble="ignores render_mode"),
            InvalidInput,
            "filmed: with render_mode='rgb_array' it came",
        ),
        (
            EnvironmentSpec(entry_point="user_environments:Counter", code_path=FOLDER),
            InvalidInput,
            "cannot be filmed: it takes no argument render_mode",
        ),
        (
            EnvironmentSpec("PointChasing-v0"),
            InvalidInput,
            "PointChasing-v0 cannot be filmed: it is batched",
        ),
        (EnvironmentSpec("Acrobot-v1", kwargs={"dt": 0.1}), InvalidInput, "does not take dt"),
    ],
)
def test_what_cannot_be_filmed(tmp_path, spec, error, complaint):
    with pytest.raises(error, match=complaint):
        record_video(spec, still, tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == [], "not half a film either"


def test_other_mistakes(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"'film\.avi'"):
        record_video(film_spec(), still, tmp_path / "film.avi")
    monkeypatch.setitem(sys.modules, "av", None)
    with raises(PreconditionFailed, "NOT_INSTALLED"):
        record_video(film_spec(), still, tmp_path / "film.mp4")
    environment = PreprocessVecEnv(film_spec(), 1)
    with pytest.raises(PreconditionFailed, match="pictures=True"):
        environment.frame()
    environment.close()
