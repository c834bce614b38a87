"""Models for MuJoCo Warp, and the capacity of their worlds."""

from __future__ import annotations

import copy
import functools
import gc
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import mujoco
import torch
import warp as wp

from podracer_core.errors import PreconditionFailed

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
