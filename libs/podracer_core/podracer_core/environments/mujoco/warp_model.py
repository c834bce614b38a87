"""What MuJoCo Warp needs of a model, and how much room its worlds need."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import mujoco

__all__ = ["Capacity", "largest_capacity", "model_for_warp", "usual_capacity"]

# More than the default of MuJoCo Warp and many times what Gymnasium's models reach under random actions (11 contacts
# and 26 rows, by a fallen Humanoid). A model that cannot even reach this gets what it can reach.
_USUAL_CONTACTS = 48
_USUAL_ROWS = 96

_ROWS_OF_EQUALITY = 6  # a weld's; the other kinds have fewer
_CONTACTS_OF_CONVEX_PAIR = 8  # two boxes


@dataclass(frozen=True, slots=True)
class Capacity:
    """Room for what a world can do at once; whoever needs more overflows.

    contacts   per world, in one pool for all: a world may have more while others have fewer. When the pool overflows,
               nobody knows whose contacts were lost, so every world counts as broken
    rows       of constraints (contacts, limits, friction, equalities), for each world alone
    """

    contacts: int
    rows: int


def model_for_warp(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy with the settings under which MuJoCo Warp agrees with C MuJoCo.

    Friction cones are elliptic: with pyramids the two differ from the first contact on. The solver is Newton where the
    model asks for PGS (Humanoid), which MuJoCo Warp does not have. Both change the motion a little; none of the
    model's own numbers (masses, gears, friction, time step, integrator) changes.
    """
    model = copy.copy(model)
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model


def usual_capacity(model: mujoco.MjModel, pairs: Iterable[tuple[int, int]]) -> Capacity:
    """What the model asks for (`<size nconmax="…" njmax="…"/>`), else enough for legged robots on the ground.

    `pairs` are the geoms that may collide. With few of them it is exactly what can never overflow: of Gymnasium's
    models only Humanoid could overflow in principle.
    """
    largest = largest_capacity(model, pairs)
    return Capacity(
        contacts=model.nconmax if model.nconmax > 0 else min(largest.contacts, _USUAL_CONTACTS),
        rows=model.njmax if model.njmax > 0 else min(largest.rows, _USUAL_ROWS),
    )


def largest_capacity(model: mujoco.MjModel, pairs: Iterable[tuple[int, int]]) -> Capacity:
    """As many contacts and constraint rows as there would be if all touched all at once; `pairs` as above."""
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
