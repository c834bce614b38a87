"""The interface between a MuJoCo environment and its engine, and C MuJoCo on the CPU.

`mujoco.batch.Batch` steps N worlds on a few threads, bit by bit as N single ones would go.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor


class Physics(ABC):
    """N worlds of one `model`, in float64 (C MuJoCo) or float32 (Warp) tensors on `device`.

    An implementation is made from (model, num_envs, device, fields): `fields` names the derived
    fields that the task reads ("xpos", "cinert", …); "qpos", "qvel" and "ctrl" are always there. It
    may change the solver's settings in its own copy of the model."""

    model: mujoco.MjModel
    num_envs: int
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def field(self, name: str) -> Tensor:
        """A live view [N, …] of a field of `mjData`, shaped as there ("qpos" [N, nq], "xpos" [N,
        nbody, 3], …).

        The tensor is the same one for as long as this lives; every step writes into it. "qpos" and
        "qvel" are the state after the step. Derived fields are what `mj_step` leaves: those of the
        last state whose forces it evaluated, one stage before. Only "ctrl" is for others to write.
        """

    @abstractmethod
    def step(self, count: int) -> None:
        """Advance every world by `count` physics steps under the present `ctrl`."""

    @abstractmethod
    def restart(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Put worlds into new states, all else as in a fresh `mjData` (no warm start, time 0), and
        `mj_forward` them.

        `rows` bool [N]; `qpos` [N, nq] and `qvel` [N, nv], of `dtype`, are read where it is true;
        other worlds keep everything, their derived fields too. The worlds count as sound again."""

    @abstractmethod
    def broken(self) -> Tensor:
        """Bool [N]: worlds in which the engine met NaN or a full buffer since they started; they
        hold nonsense.

        It may notice NaN one step late: the environment looks for it in observations and rewards
        itself."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """A copy of all that the next step depends on (the warm start too) and of `fields`,
        environment axis first."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` returned, bit by bit, derived fields included."""

    def captured(self, advance: Callable[[], None]) -> Callable[[], None]:
        """`advance` as a call that costs the host as little as it can: a replayed graph, where the
        engine has graphs.

        `advance` is an environment's whole step: it calls `step` and `restart`, and reads and
        writes always the same tensors, without waiting for a CUDA device. What is returned must
        also work while someone else captures."""
        return advance

    def close(self) -> None:  # noqa: B027 - a GPU's memory goes with its tensors
        """Give back threads and memory."""


class BatchPhysics(Physics):
    """N worlds in float64; the results do not depend on the number of threads, which is torch's
    own."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, fields: Sequence[str] = ()) -> None:
        """`fields`: the derived fields of `mjData` that will be read."""
        _keep_warnings_out_of_files()
        self.model = model
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self._model = _without_islands(model)
        # Only a persistent batch shows what contact forces follow from.
        has_forces = "cfrc_ext" in fields
        threads = min(torch.get_num_threads(), num_envs)
        self._batch = Batch(self._model, num_envs, threads, persistent=has_forces)
        self._scratch = mujoco.MjData(self._model) if has_forces else None
        # [N, …]: all that the next step depends on, MuJoCo's mjSTATE_INTEGRATION.
        self._rows = torch.from_numpy(self._batch.state)
        self._default_row = self._rows[:1].clone()
        bound = ("qpos", "qvel", "ctrl", *(name for name in fields if name != "cfrc_ext"))
        self._fields = {name: _live(self._batch.bind(name)) for name in bound}
        if has_forces:
            self._fields["cfrc_ext"] = torch.zeros(num_envs, model.nbody, 6, dtype=self.dtype)
        self._derived = tuple(fields)
        # [N, kind]: how often MuJoCo has warned of NaN, infinity or a full buffer.
        self._warnings = torch.from_numpy(self._batch.warning)[:, :, 1]
        self._failed = torch.zeros(num_envs, dtype=torch.bool)

    def field(self, name: str) -> Tensor:
        """See `Physics.field`."""
        return self._fields[name]

    def step(self, count: int) -> None:
        """See `Physics.step`."""
        try:
            self._batch.step(nstep=count)
        except SimulationError as error:  # the other worlds have gone on
            self._failed[torch.from_numpy(error.ids).long()] = True
        if self._scratch is not None:  # as Gymnasium does after its step; a batch has no such call
            for world, forces in enumerate(self._fields["cfrc_ext"].numpy()):
                mujoco.mj_rnePostConstraint(self._model, self._batch.get_data(world, self._scratch))
                forces[:] = self._scratch.cfrc_ext

    def restart(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """See `Physics.restart`."""
        index = rows.nonzero().squeeze(1)
        # A world is its row. `Batch.reset` does the same and takes ten times as long for a few
        # worlds.
        self._rows.index_copy_(0, index, self._default_row.expand(index.numel(), -1))
        self._fields["qpos"].index_copy_(0, index, qpos.index_select(0, index))
        self._fields["qvel"].index_copy_(0, index, qvel.index_select(0, index))
        self._warnings.index_fill_(0, index, 0)
        self._failed.index_fill_(0, index, False)
        self._batch.forward(index.numpy())

    def broken(self) -> Tensor:
        """See `Physics.broken`; where MuJoCo warned of NaN it has also put the world back to its
        default state."""
        return self._warnings.any(1).logical_or_(self._failed)

    def state(self) -> dict[str, Tensor]:
        """See `Physics.state`."""
        return {"rows": self._rows.clone()} | {
            name: self._fields[name].clone() for name in self._derived
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Physics.load_state`."""
        self._warnings.zero_()
        self._failed.zero_()
        self._rows.copy_(state["rows"])
        for name in self._derived:
            self._fields[name].copy_(state[name])


def _without_islands(model: mujoco.MjModel) -> mujoco.MjModel:
    """`model`, or a copy that does not look for islands of constraints where one tree of bodies can
    only make one.

    The same bits come out, 4 to 5 % sooner.
    """
    if model.ntree != 1:
        return model
    plain = copy.copy(model)
    plain.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    return plain


def _live(array: np.ndarray) -> Tensor:
    """`array`'s own memory. The batch marks what it computes as read-only, which torch can only
    warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _keep_warnings_out_of_files() -> None:
    """MuJoCo's warnings go to stderr only: broken worlds are counted, and no MUJOCO_LOG.TXT lies
    about."""
    config = mujoco.MjLogConfig.get()
    config.logto_file = False
    mujoco.MjLogConfig.set(config)
