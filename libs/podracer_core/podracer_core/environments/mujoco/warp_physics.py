"""MuJoCo on a GPU: MuJoCo Warp, its arrays seen as torch tensors.

In float32, with the settings of `model_for_warp`. Under the same settings C MuJoCo comes to the
same positions within 1e-4 after 100 physics steps of random torques: 28 to 31 of 32 worlds of Ant,
31 or 32 of Humanoid, HalfCheetah, Hopper and Walker2d, the median between 4e-7 and 1e-5. The rest
are worlds in which rounding decides whether a foot touches a step earlier; C MuJoCo with its state
rounded to float32 at every step leaves itself so, too.

A GPU adds contacts up in any order, so there two runs agree to rounding only. On a CPU device Warp
works as well and is repeatable, but on one thread: good for tests, not for training."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from podracer_core.environments.mujoco.physics import Physics
from podracer_core.environments.mujoco.warp_model import (
    Capacity,
    GraphedStep,
    model_for_warp,
    on_torch_stream,
    start_warp,
    usual_capacity,
)
from podracer_core.errors import InvalidInput

# What the next step depends on, besides the model.
_STATE = ("qpos", "qvel", "act", "ctrl", "time", "qacc_warmstart")
# What positions alone decide, without contacts and forces.
_KINEMATIC = frozenset(
    ("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com", "cinert")
)
# `mj_rnePostConstraint` computes them
_AFTER_CONSTRAINTS = frozenset(("cacc", "cfrc_int", "cfrc_ext"))
# A solver that stops at its iteration limit is no error: C MuJoCo continues with its result, and so
# does this code.
_OVERFLOWS = int(
    mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS)
)


def _mark_overflow(
    row_count: wp.array[int],
    row_capacity: int,
    pair_count: wp.array[int],
    contact_count: wp.array[int],
    contact_capacity: int,
    overflow: wp.array[int],
) -> None:
    world = wp.tid()
    if row_count[world] > row_capacity:
        overflow[world] = overflow[world] | wp.static(int(mjw.OverflowType.NEFC))
    if wp.max(pair_count[0], contact_count[0]) > contact_capacity:
        overflow[world] = overflow[world] | wp.static(int(mjw.OverflowType.NARROWPHASE))


_MARK_OVERFLOW = wp.kernel(_mark_overflow, enable_backward=False)


class WarpPhysics(Physics):
    """N worlds in MuJoCo Warp, in float32. Views, and how a step may be captured: `Physics`.

    Warp has one current stream a device, for all threads: those on one GPU must be used from one
    thread at a time.

    `capacity` is the room for contacts and constraint rows, `usual_capacity` if None; a world that
    overflows it is `broken`. Raises InvalidInput for a model that MuJoCo Warp cannot simulate, or a
    field that it does not have."""

    dtype = torch.float32

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device | str,
        fields: Iterable[str] = (),
        capacity: Capacity | None = None,
    ) -> None:
        self.model = model_for_warp(model)
        self.num_envs = num_envs
        self.device = torch.empty(0, device=device).device  # with the number of the GPU
        start_warp(self.device)
        with on_torch_stream(self.device):
            try:
                self._model = mjw.put_model(self.model)
            except (NotImplementedError, ValueError) as error:
                raise InvalidInput(f"MuJoCo Warp cannot simulate this model: {error}") from error
            self.capacity = capacity or usual_capacity(
                self.model, self._model.nxn_geom_pair_filtered.numpy().tolist()
            )
            self._data = mjw.make_data(
                self.model,
                nworld=num_envs,
                nconmax=self.capacity.contacts,
                njmax=self.capacity.rows,
            )
            self._rows = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
            self._warp_rows = wp.from_torch(self._rows)
        # the kernels' own printing; `broken` reports this instead
        self._model.opt.warn_overflow = 0
        self._model.callback.control = _check_capacity
        self._overflow = wp.to_torch(self._data.overflow)
        self._broken = torch.zeros_like(self._rows)
        self._views = {name: self._view(name) for name in _STATE if name != "act" or self.model.na}
        self._derived = {name: self._view(name) for name in fields if name not in _STATE}
        self._graphs: dict[Hashable, wp.Graph] = {}

    def field(self, name: str) -> Tensor:
        """See `Physics.field`; a derived field must be one of the constructor's `fields`."""
        view = self._views.get(name, self._derived.get(name))
        if view is None:
            raise InvalidInput(
                f"{name!r} is not among the fields that were asked for: {', '.join(self._derived)}"
            )
        return view

    def step(self, count: int) -> None:
        """See `Physics.step`."""
        self._run(("step", count), lambda: self._advance(count))
        sound = (self._views["qpos"].abs() <= mujoco.mjMAXVAL).all(1)
        sound &= (self._views["qvel"].abs() <= mujoco.mjMAXVAL).all(1)
        self._broken |= ~sound | ((self._overflow & _OVERFLOWS) != 0)

    def restart(self, rows: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """See `Physics.restart`; what follows from the new states is computed as far as the fields
        need it."""
        self._rows.copy_(rows)
        kept = {name: view.clone() for name, view in self._derived.items()}
        self._run("reset", lambda: mjw.reset_data(self._model, self._data, reset=self._warp_rows))
        for name, fresh in (("qpos", qpos), ("qvel", qvel)):
            _write_rows(self._views[name], self._rows, fresh)
        self._broken.logical_and_(~self._rows)
        if not self._derived:
            return
        self._run("forward", self._forward)
        # the others' are of one stage before their state, and stay so
        for name, view in self._derived.items():
            _write_rows(view, ~self._rows, kept[name])

    def broken(self) -> Tensor:
        """See `Physics.broken`. Beyond `mjMAXVAL` (1e10) counts as NaN, as in C MuJoCo."""
        return self._broken

    def state(self) -> dict[str, Tensor]:
        """See `Physics.state`: the derived fields are part of it."""
        return {name: value.clone() for name, value in self._memory().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `Physics.load_state`."""
        for name, value in self._memory().items():
            value.copy_(state[name])

    def captured(self, advance: Callable[[], None]) -> Callable[[], None]:
        """See `Physics.captured`: one CUDA graph. On a CPU the physics alone are replayed, by
        `step` and `restart`."""
        return GraphedStep(advance, self.device) if self.device.type == "cuda" else advance

    def close(self) -> None:
        """See `Physics.close`. Warp frees memory at once: what still runs on a stream of torch's
        has to end first."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _memory(self) -> dict[str, Tensor]:
        return {**self._views, **self._derived, "overflow": self._overflow, "broken": self._broken}

    def _view(self, name: str) -> Tensor:
        """The array `name` of all worlds as a tensor, shaped as in `mjData`."""
        array = getattr(self._data, name, None)
        like: Any = getattr(mujoco.MjData(self.model), name, None)
        tensor = wp.to_torch(array) if isinstance(array, wp.array) else None
        shape = (self.num_envs, *np.shape(like))
        if like is None or tensor is None or tensor.numel() != math.prod(shape):
            raise InvalidInput(f"MuJoCo Warp has no field {name!r} like that of C MuJoCo")
        return tensor.view(shape)  # type: ignore[no-any-return]

    def _advance(self, count: int) -> None:
        for _ in range(count):
            mjw.step(self._model, self._data)
        self._after_constraints()

    def _forward(self) -> None:
        if self._derived.keys() <= _KINEMATIC:
            mjw.fwd_kinematics(self._model, self._data)
        else:
            mjw.forward(self._model, self._data)
            self._after_constraints()

    def _after_constraints(self) -> None:
        if not self._derived.keys().isdisjoint(_AFTER_CONSTRAINTS):
            mjw.rne_postconstraint(self._model, self._data)

    def _run(self, name: Hashable, work: Callable[[], None]) -> None:
        """Run Warp's `work`. On a CPU the whole step is not captured elsewhere, so it is captured
        here."""
        with on_torch_stream(self.device):
            if self.device.type == "cuda":
                work()
                return
            if name not in self._graphs:
                with wp.ScopedCapture(device="cpu") as capture:
                    work()
                self._graphs[name] = capture.graph
            wp.capture_launch(self._graphs[name])


def _check_capacity(_model: mjw.Model, data: mjw.Data) -> None:
    """MuJoCo Warp itself looks only after the last of an integrator's stages."""
    wp.launch(
        _MARK_OVERFLOW,
        dim=data.nworld,
        inputs=[data.nefc, data.njmax, data.ncollision, data.nacon, data.naconmax],
        outputs=[data.overflow],
    )


def _write_rows(view: Tensor, rows: Tensor, values: Tensor) -> None:
    torch.where(rows.view(-1, *[1] * (view.dim() - 1)), values, view, out=view)
