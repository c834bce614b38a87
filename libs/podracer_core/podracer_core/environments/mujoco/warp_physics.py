"""MuJoCo on a GPU: MuJoCo Warp, its arrays seen as torch tensors.

In float32, with the settings of `model_for_warp`. Under the same settings C MuJoCo comes to the
same positions within 1e-4 after 100 physics steps of random torques: 28 to 31 of 32 worlds of Ant,
31 or 32 of Humanoid, HalfCheetah, Hopper and Walker2d, the median between 4e-7 and 1e-5. The rest
are worlds in which rounding decides whether a foot touches a step earlier; C MuJoCo with its state
rounded to float32 at every step leaves itself so, too.

A GPU adds contacts up in any order, so there two runs agree to rounding only. On a CPU device Warp
works as well and is repeatable, but on one thread: good for tests, not for training."""

from __future__ import annotations

import copy
import functools
import gc
import math
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from podracer_core.environments.mujoco.physics import Physics
from podracer_core.errors import InvalidInput, PreconditionFailed

# More than the default of MuJoCo Warp and many times what Gymnasium's models reach under random
# actions (11 contacts and 26 rows, by a fallen Humanoid). A model that cannot even reach this gets
# what it can reach.
_USUAL_CONTACTS = 48
_USUAL_ROWS = 96

_ROWS_OF_EQUALITY = 6  # a weld's; the other kinds have fewer
_CONTACTS_OF_CONVEX_PAIR = 8  # two boxes


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a world's contacts and constraints. A world that needs more overflows.

    contacts   per world, in one pool for all: a world may have more while others have fewer. When
               the pool overflows, the worlds of the lost contacts are unknown, so every world
               counts as broken
    rows       of constraints (contacts, limits, friction, equalities), for each world alone
    """

    contacts: int
    rows: int


def model_for_warp(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy with the settings under which MuJoCo Warp agrees with C MuJoCo.

    Friction cones are elliptic: with pyramids the two differ from the first contact on. The solver
    is Newton where the model asks for PGS (Humanoid), which MuJoCo Warp does not have. Both change
    the motion a little; none of the model's own numbers (masses, gears, friction, time step,
    integrator) changes."""
    model = copy.copy(model)
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model


def usual_capacity(model: mujoco.MjModel, pairs: Iterable[tuple[int, int]]) -> Capacity:
    """The model's own capacity (`<size nconmax="…" njmax="…"/>`), else enough for legged robots on
    the ground.

    `pairs` are the geoms that may collide. With few of them it is exactly what can never overflow:
    of Gymnasium's models only Humanoid could overflow in principle."""
    largest = largest_capacity(model, pairs)
    return Capacity(
        contacts=model.nconmax if model.nconmax > 0 else min(largest.contacts, _USUAL_CONTACTS),
        rows=model.njmax if model.njmax > 0 else min(largest.rows, _USUAL_ROWS),
    )


def largest_capacity(model: mujoco.MjModel, pairs: Iterable[tuple[int, int]]) -> Capacity:
    """Contacts and constraint rows if all pairs touched at once; `pairs` as above."""
    contacts = 0
    rows = _ROWS_OF_EQUALITY * model.neq
    rows += int((model.dof_frictionloss > 0).sum() + (model.tendon_frictionloss > 0).sum())
    rows += int(model.jnt_limited.sum() + model.tendon_limited.sum())
    for first, second in pairs:
        count = _contacts_of_pair({int(model.geom_type[first]), int(model.geom_type[second])})
        contacts += count
        rows += count * int(max(model.geom_condim[first], model.geom_condim[second]))
    return Capacity(max(contacts, 1), max(rows, 1))


def _contacts_of_pair(types: set[int]) -> int:
    """The most contacts that two geoms of these types can make."""
    if mujoco.mjtGeom.mjGEOM_SPHERE in types:
        return 1
    if types <= {int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_CAPSULE)}:
        return 2
    return _CONTACTS_OF_CONVEX_PAIR


def start_warp(device: torch.device) -> None:
    """Initialize Warp without its banner; kernels go where they can be written. Calling it again is
    harmless.

    Warp compiles its kernels at their first use (a minute or two for a GPU) and keeps them in
    `WARP_CACHE_PATH`, or in the user's cache folder; where neither can be written, in a temporary
    folder of this process. Raises PreconditionFailed where `device` is CUDA and its driver is too
    old (before 12.4) for loops inside graphs."""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    if (
        wp.config.kernel_cache_dir is None
        and "WARP_CACHE_PATH" not in os.environ
        and not _cache_is_writable()
    ):
        wp.config.kernel_cache_dir = tempfile.mkdtemp(prefix="podracer-warp-")
    wp.init()
    if device.type == "cuda" and not wp.is_conditional_graph_supported():
        raise PreconditionFailed(
            "MuJoCo on a GPU needs a driver for CUDA 12.4 or newer; install one, or use device "
            "'cpu'",
            reason="CUDA_DRIVER_TOO_OLD",
        )


def _cache_is_writable() -> bool:
    """Whether Warp's default folder, or the nearest of its parents that exists, can be written."""
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        / "warp"
        / wp.config.version
    )
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return os.access(existing, os.W_OK | os.X_OK)


@functools.cache
def warp_stream(stream: torch.cuda.Stream) -> wp.Stream:
    """`stream` as Warp knows it; always the same object, because Warp looks for an open capture by
    the object."""
    return wp.stream_from_torch(stream)


def on_torch_stream(device: torch.device) -> AbstractContextManager[object]:
    """Warp's work in this context comes in order with torch's: on torch's current stream of
    `device`."""
    if device.type == "cuda":
        context: AbstractContextManager[object] = wp.ScopedStream(
            warp_stream(torch.cuda.current_stream(device)), sync_enter=False
        )
    else:
        context = wp.ScopedDevice("cpu")
    return context


class GraphedStep:
    """Calls `advance`: the first time as it is, which compiles all kernels, from then on as one
    graph.

    `advance` must read and write the same tensors every time, must not wait for the device and must
    not copy from the host. MuJoCo Warp ends its solver's loop on the device, with a conditional
    graph node; CUDA takes none inside a child graph, so physics cannot be captured first and put
    into a graph of torch's afterwards. Therefore Warp captures, and torch works along on the
    captured stream, with a memory pool that lives as long as the graph."""

    def __init__(self, advance: Callable[[], None], device: torch.device) -> None:
        self._advance = advance
        self._device = device
        self._has_run = False
        self._graph: wp.Graph | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._joined: list[wp.ScopedCapture] = []  # keeps the kernels of others' graphs loaded

    def __call__(self) -> None:
        """Advance once. While someone else captures torch's current stream, their graph takes the
        step in."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            if torch.cuda.is_current_stream_capturing():
                with wp.ScopedCapture(stream=warp_stream(current), external=True) as joined:
                    self._advance()
                self._joined.append(joined)
            elif not self._has_run:
                self._advance()
                self._has_run = True
            else:
                if self._graph is None:
                    self._graph = self._capture(current)
                wp.capture_launch(self._graph, stream=warp_stream(current))

    def _capture(self, current: torch.cuda.Stream) -> wp.Graph:
        """The graph of one step; capturing runs nothing. The default stream cannot be captured,
        hence one aside.

        Garbage goes first, as in `torch.cuda.graph`: memory of an earlier environment, freed
        meanwhile, would end it."""
        gc.collect()
        self._pool = torch.cuda.MemPool()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with (
            torch.cuda.stream(aside),
            torch.cuda.use_mem_pool(self._pool),
            wp.ScopedCapture(stream=warp_stream(aside)) as capture,
        ):
            self._advance()
        return capture.graph


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
