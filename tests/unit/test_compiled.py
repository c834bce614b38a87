"""Work that torch's compiler traces: the same results. Its last part, which makes kernels, needs a
GPU."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from torch import Tensor

from podracer_core.device import compiled
from tests.unit.test_cuda_graphs import trained

CPU = torch.device("cpu")
SHARED = {"minibatch_size": 5, "epochs": 2}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled for a CPU: traced, then run as it was traced."""
    names: list[str] = []

    def trace(work: functools.partial[object], **options: object) -> object:
        names.append(work.__name__)
        return torch_compile(work, **options | {"backend": "eager", "options": None})

    torch_compile = torch.compile
    monkeypatch.setattr("podracer_core.device.can_compile", lambda _: True)
    monkeypatch.setattr(torch, "compile", trace)
    return names


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ppo", {"normalize_rewards": True, "normalize_values": True, **SHARED}),
        ("ppo", {"desired_kl": 0.01, "value_clip_range": 0.2, "target_kl": 0.02, **SHARED}),
        pytest.param("ppo", {"h_term": "k_step", **SHARED}, marks=pytest.mark.thorough),
        pytest.param("a2c", {}, marks=pytest.mark.thorough),
        pytest.param("sac", {"batch_size": 8, "learning_starts": 16}, marks=pytest.mark.thorough),
    ],
)
def test_training_by_compiled_functions_is_training(request, name, more):
    expected = trained(name, 6, **more)
    names = request.getfixturevalue("traced")
    # Some operators are traced in parts, which round on their own.
    torch.testing.assert_close(
        trained(name, 6, **more), expected, rtol=1e-4, atol=1e-5, equal_nan=True
    )
    assert {"_advance", "draw_noise"} <= set(names)
    assert name == "sac" or {"rows", "_slopes_of", "_take_step"} <= set(names)


def test_what_cannot_be_compiled_runs_as_it_is(traced, caplog):
    def halved(numbers: Tensor) -> Tensor:
        return numbers / 2 if (numbers > 1).any() else numbers

    work = compiled(halved, CPU)
    with caplog.at_level(logging.WARNING, "podracer_core.device"):
        assert [work(torch.tensor([value])).item() for value in (1.0, 4.0, 6.0)] == [1.0, 2.0, 3.0]
    assert traced == ["halved"] and len(caplog.records) == 1
    assert "halved cannot be compiled" in caplog.text
