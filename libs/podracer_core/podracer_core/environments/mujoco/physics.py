"""What a MuJoCo environment asks of the engine beneath it, be it C MuJoCo or MuJoCo Warp."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import mujoco
import torch
from torch import Tensor

__all__ = ["Physics"]


class Physics(ABC):
    """N worlds of one `model`, in float64 (C MuJoCo) or float32 (Warp) tensors on `device`."""

    model: mujoco.MjModel
    num_envs: int
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def field(self, name: str) -> Tensor:
        """A live view [N, …] of a field of `mjData` ("qpos", "qvel", "ctrl", "xpos", "cinert", …).

        The tensor is the same one for as long as this lives; every step writes into it.
        """

    @abstractmethod
    def step(self, count: int) -> None:
        """Advance every world by `count` physics steps under the present `ctrl`."""

    @abstractmethod
    def restart(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Put worlds into new states, warm start forgotten, with all that follows from them computed (`mj_forward`).

        `rows` bool [N]; `qpos` [N, nq] and `qvel` [N, nv] are read where it is true.
        """

    @abstractmethod
    def broken(self) -> Tensor:
        """Bool [N]: worlds whose last `step` overflowed a buffer or gave NaN; what they hold now is worthless."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """A copy of all that the next step depends on, environment axis first."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` returned, with all that follows from it computed."""

    def close(self) -> None:  # noqa: B027 - a GPU's memory goes with its tensors
        """Give back threads and memory."""
