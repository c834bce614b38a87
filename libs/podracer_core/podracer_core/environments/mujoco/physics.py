"""What a MuJoCo environment asks of the engine beneath it, be it C MuJoCo or MuJoCo Warp."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import mujoco
import torch
from torch import Tensor


class Physics(ABC):
    """N worlds of one `model`, in float64 (C MuJoCo) or float32 (Warp) tensors on `device`.

    An implementation is made from (model, num_envs, device, fields): `fields` names the derived fields that the task
    reads ("xpos", "cinert", …); "qpos", "qvel" and "ctrl" are always there. It may change the solver's settings in
    its own copy of the model.
    """

    model: mujoco.MjModel
    num_envs: int
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def field(self, name: str) -> Tensor:
        """A live view [N, …] of a field of `mjData`, shaped as there ("qpos" [N, nq], "xpos" [N, nbody, 3], …).

        The tensor is the same one for as long as this lives; every step writes into it. "qpos" and "qvel" are the
        state after the step. Derived fields are what `mj_step` leaves: those of the last state whose forces it
        evaluated, one stage before. Only "ctrl" is for others to write.
        """

    @abstractmethod
    def step(self, count: int) -> None:
        """Advance every world by `count` physics steps under the present `ctrl`."""

    @abstractmethod
    def restart(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Put worlds into new states, all else as in a fresh `mjData` (no warm start, time 0), and `mj_forward` them.

        `rows` bool [N]; `qpos` [N, nq] and `qvel` [N, nv], of `dtype`, are read where it is true; other worlds keep
        everything, their derived fields too. The worlds count as sound again.
        """

    @abstractmethod
    def broken(self) -> Tensor:
        """Bool [N]: worlds in which the engine met NaN or a full buffer since they started; they hold nonsense.

        It may notice NaN one step late: the environment looks for it in observations and rewards itself.
        """

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """A copy of all that the next step depends on (the warm start too) and of `fields`, environment axis first."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` returned, bit by bit, derived fields included."""

    def captured(self, advance: Callable[[], None]) -> Callable[[], None]:
        """`advance` as a call that costs the host as little as it can: a replayed graph, where the engine has graphs.

        `advance` is an environment's whole step: it calls `step` and `restart`, and reads and writes always the same
        tensors, without waiting for a CUDA device. What is returned must also work while someone else captures.
        """
        return advance

    def close(self) -> None:  # noqa: B027 - a GPU's memory goes with its tensors
        """Give back threads and memory."""
