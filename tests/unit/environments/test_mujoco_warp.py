"""MuJoCo Warp as an engine, on Warp's CPU device, against C MuJoCo and against itself.

Warp compiles its kernels at their first use on a machine (Ant: 20 s), so all of this runs in one
process of the test run, and two models are enough for it; the others are marked slow."""

from __future__ import annotations

import os
from pathlib import Path

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import torch
import warp as wp
from torch import Tensor

from podracer_core.environments.mujoco import Capacity, WarpPhysics, load_model, warp_physics
from podracer_core.errors import InvalidInput

pytestmark = pytest.mark.xdist_group("warp")

ANT, CHEETAH = "ant.xml", "half_cheetah.xml"
slow = pytest.mark.slow
# xpos comes with the positions, qfrc_actuator with the forces, cfrc_ext only by a pass of its own.
FIELDS = ("xpos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def make(
    xml_file: str = ANT, num_envs: int = 4, fields: tuple[str, ...] = FIELDS, **kwargs: object
) -> WarpPhysics:
    return WarpPhysics(load_model(xml_file), num_envs, "cpu", fields, **kwargs)


def noisy_states(model: mujoco.MjModel, num_envs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Different positions about the model's own, and velocities about rest."""
    generator = np.random.default_rng(seed)
    qpos = model.qpos0 + generator.uniform(-0.05, 0.05, (num_envs, model.nq))
    qvel = generator.uniform(-0.05, 0.05, (num_envs, model.nv))
    return torch.tensor(qpos, dtype=torch.float32), torch.tensor(qvel, dtype=torch.float32)


def controls(model: mujoco.MjModel, num_envs: int, steps: int, seed: int = 1) -> Tensor:
    """[steps, N, nu], uniform over all that the actuators can do."""
    low, high = torch.tensor(model.actuator_ctrlrange, dtype=torch.float32).T
    uniform = torch.rand(steps, num_envs, model.nu, generator=torch.Generator().manual_seed(seed))
    return low + (high - low) * uniform


def start(physics: WarpPhysics, seed: int = 0) -> None:
    everywhere = torch.ones(physics.num_envs, dtype=torch.bool)
    physics.restart(everywhere, *noisy_states(physics.model, physics.num_envs, seed))


def act(physics: WarpPhysics, steps: int, seed: int = 1) -> None:
    for ctrl in controls(physics.model, physics.num_envs, steps, seed):
        physics.field("ctrl").copy_(ctrl)
        physics.step(2)


def assert_same(
    one: dict[str, Tensor], other: dict[str, Tensor], rows: slice | Tensor = slice(None)
) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value[rows], other[name][rows]), name


@pytest.mark.parametrize(
    "xml_file",
    [
        pytest.param(ANT, marks=pytest.mark.thorough),
        CHEETAH,
        pytest.param("humanoid.xml", marks=slow),
        pytest.param("hopper.xml", marks=slow),
        pytest.param("walker2d_v5.xml", marks=slow),
    ],
)
def test_it_stays_within_1e_4_of_c_mujoco(xml_file):
    """max |Δqpos| over 100 physics steps from one state, in each of 16 worlds, under the same
    settings.

    Rounding to float32 decides now and then whether a foot touches a step earlier; such a world is
    another one from there on. C MuJoCo does so against itself too, where its state is rounded to
    float32 at every step (1 of 48 worlds of Ant beyond 1e-4), so one world in eight may. From each
    of Warp's own states one step of C MuJoCo comes to the same place, always."""
    physics = make(xml_file, 16, ())
    model = physics.model
    assert (model.opt.cone, model.opt.solver) == (
        mujoco.mjtCone.mjCONE_ELLIPTIC,
        mujoco.mjtSolver.mjSOL_NEWTON,
    )
    start(physics)
    worlds, single = [mujoco.MjData(model) for _ in range(16)], mujoco.MjData(model)
    for world, qpos, qvel in zip(worlds, physics.field("qpos"), physics.field("qvel"), strict=True):
        world.qpos[:], world.qvel[:] = qpos, qvel
    drift, step_error = torch.zeros(16), 0.0
    for ctrl in controls(model, 16, 100):
        physics.field("ctrl").copy_(ctrl)
        before = physics.state()
        physics.step(1)
        for world, values in zip(worlds, ctrl, strict=True):
            world.ctrl[:] = values
            mujoco.mj_step(model, world)
        theirs = torch.tensor(np.array([world.qpos for world in worlds]))
        drift = torch.maximum(drift, (physics.field("qpos") - theirs).abs().amax(1))
        single.qpos[:], single.qvel[:], single.ctrl[:] = (
            before["qpos"][0],
            before["qvel"][0],
            ctrl[0],
        )
        single.qacc_warmstart[:] = before["qacc_warmstart"][0]
        mujoco.mj_step(model, single)
        step_error = max(
            step_error, float((physics.field("qpos")[0] - torch.tensor(single.qpos)).abs().max())
        )
    assert not physics.broken().any()
    assert int((drift < 1e-4).sum()) >= 14
    assert float(drift.median()) < 2e-5
    assert step_error < 2e-6


def test_fields_are_those_of_c_mujoco():
    """Same shapes, same stage of the Runge-Kutta integrator, contact forces among them."""
    names = (*FIELDS, "xmat", "time", "actuator_force")
    physics = make(ANT, 3, names)
    start(physics)
    data = mujoco.MjData(physics.model)
    data.qpos[:], data.qvel[:] = physics.field("qpos")[2], physics.field("qvel")[2]
    for ctrl in controls(physics.model, 3, 100):
        physics.field("ctrl").copy_(ctrl)
        physics.step(1)
        data.ctrl[:] = ctrl[2]
        mujoco.mj_step(physics.model, data)
        if data.ncon >= 2:
            break
    mujoco.mj_rnePostConstraint(physics.model, data)
    assert data.ncon >= 2
    for name in names:
        theirs = np.asarray(getattr(data, name))
        assert physics.field(name).shape == (3, *theirs.shape), name
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(
            physics.field(name)[2].numpy(), theirs, atol=2e-4 * scale, err_msg=name
        )


def test_replayed_graphs_do_what_warp_does_step_by_step():
    physics = make()
    start(physics)
    act(physics, 10)
    with wp.ScopedDevice("cpu"):
        model = mjw.put_model(physics.model)
        data = mjw.make_data(
            physics.model, nworld=4, nconmax=physics.capacity.contacts, njmax=physics.capacity.rows
        )
        qpos, qvel = noisy_states(physics.model, 4)
        wp.to_torch(data.qpos).copy_(qpos)
        wp.to_torch(data.qvel).copy_(qvel)
        for ctrl in controls(physics.model, 4, 10):
            wp.to_torch(data.ctrl).copy_(ctrl)
            for _ in range(2):
                mjw.step(model, data)
    for name in ("qpos", "qvel", "qacc_warmstart", "xpos"):
        assert torch.equal(physics.state()[name], wp.to_torch(getattr(data, name))), name


@pytest.mark.parametrize("fields", [FIELDS, ("xpos",), ()])
def test_a_restart_touches_its_rows_only(fields):
    """The others keep all they had, derived fields too; the new ones are as if nothing had been
    before."""
    physics, fresh = make(fields=fields), make(fields=fields)
    start(physics)
    act(physics, 5)
    before = physics.state()
    rows = torch.tensor([True, False, True, False])
    states = noisy_states(physics.model, 4, seed=7)
    physics.restart(rows, *states)
    fresh.restart(torch.ones(4, dtype=torch.bool), *states)
    assert_same(physics.state(), before, ~rows)
    assert_same(physics.state(), fresh.state(), rows)
    act(physics, 5)
    act(fresh, 5)
    assert_same(physics.state(), fresh.state(), rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12])
def test_a_broken_world_is_told_and_hurts_no_other(value):
    physics, sound = make(), make()
    for each in (physics, sound):
        start(each)
        act(each, 3)
    physics.field("qvel")[1, 3] = value
    act(physics, 3, seed=2)
    act(sound, 3, seed=2)
    assert physics.broken().tolist() == [False, True, False, False]
    others = ~physics.broken()
    assert_same(physics.state(), sound.state(), others)
    # It starts anew like any other, and nothing of the old world comes back.
    start(physics)
    start(sound)
    act(physics, 5)
    act(sound, 5)
    assert not physics.broken().any()
    assert_same(physics.state(), sound.state())


def test_a_world_with_too_many_constraints_is_broken_alone():
    """8 rows are enough for the hinges' limits, not for contacts besides."""
    physics = make(capacity=Capacity(contacts=25, rows=8))
    qpos, qvel = (state[:1].repeat(4, 1) for state in noisy_states(physics.model, 4))
    qpos[:, 2] = torch.tensor([5.0, 5.0, 0.05, 5.0])  # height of the torso, metres
    physics.restart(torch.ones(4, dtype=torch.bool), qpos, qvel)
    physics.step(2)
    assert physics.broken().tolist() == [False, False, True, False]
    qpos[2, 2] = 5.0
    physics.restart(physics.broken().clone(), qpos, qvel)
    assert not physics.broken().any()
    physics.step(2)
    assert not physics.broken().any()


def test_an_overflow_in_any_stage_of_the_integrator_is_told():
    """Seen by a world that is on the ground only when the step begins: it has left it at the last
    stage."""
    physics = make(num_envs=1, capacity=Capacity(contacts=25, rows=8))
    qpos = torch.tensor(physics.model.qpos0, dtype=torch.float32)[None].clone()
    qvel = torch.zeros(1, 14)
    qpos[0, 2], qvel[0, 2] = 0.05, 200.0  # 2 m up within the step of 0.01 s
    physics.restart(torch.ones(1, dtype=torch.bool), qpos, qvel)
    physics.step(1)
    assert physics.field("qpos")[0, 2] > 1
    assert physics.broken().all()


def test_a_pool_of_contacts_that_overflows_breaks_every_world():
    """The worlds of the dropped contacts are unknown."""
    physics = make(capacity=Capacity(contacts=1, rows=83))
    qpos, qvel = noisy_states(physics.model, 4)
    qpos[:, 2] = 0.05
    physics.restart(torch.ones(4, dtype=torch.bool), qpos, qvel)
    physics.step(1)
    assert physics.broken().all()


def test_state_goes_back_bit_by_bit():
    physics, other = make(), make()
    start(physics)
    act(physics, 5)
    state = physics.state()
    act(physics, 5, seed=3)
    start(other, seed=9)
    other.load_state(state)
    assert_same(other.state(), state)
    act(other, 5, seed=3)
    assert_same(other.state(), physics.state())


def test_capacity_is_what_the_model_can_reach_or_asks_for():
    """Ant: 13 bodies' geoms touch the floor, a sphere once and 12 capsules twice; 3 rows each, and
    8 hinges' limits."""
    assert make().capacity == Capacity(contacts=25, rows=8 + 3 * 25)
    assert make("humanoid.xml").capacity == Capacity(contacts=48, rows=96)
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><size nconmax='7' njmax='11'/><worldbody><geom type='plane' size='1 1 1'/>"
        "<body pos='0 0 1'><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    assert warp_physics.usual_capacity(model, [(0, 1)]) == Capacity(contacts=7, rows=11)
    assert warp_physics.largest_capacity(model, [(0, 1)]) == Capacity(contacts=1, rows=3)


def test_the_model_given_is_left_alone():
    model = load_model("humanoid.xml")
    physics = WarpPhysics(model, 1, "cpu")
    assert (model.opt.cone, model.opt.solver) == (
        mujoco.mjtCone.mjCONE_PYRAMIDAL,
        mujoco.mjtSolver.mjSOL_PGS,
    )
    assert physics.model.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert physics.model.opt.integrator == model.opt.integrator


def test_bad_input():
    with pytest.raises(InvalidInput, match="field 'nonsense'"):
        make(fields=("nonsense",))
    with pytest.raises(InvalidInput, match="field 'overflow'"):
        make(fields=("overflow",))  # MuJoCo Warp's own
    with pytest.raises(InvalidInput, match="'xpos'"):
        make(fields=("cvel",)).field("xpos")
    model = load_model(ANT)
    model.opt.enableflags |= 1 << 30  # an extension that MuJoCo Warp has never heard of
    with pytest.raises(InvalidInput, match="MuJoCo Warp"):
        WarpPhysics(model, 1, "cpu")


def test_kernels_go_where_they_can_be_written(monkeypatch, tmp_path):
    """The user's cache folder, `WARP_CACHE_PATH`, or a new folder where neither can be written."""
    monkeypatch.setattr(wp, "init", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    monkeypatch.setattr(wp.config, "kernel_cache_dir", None)
    warp_physics.start_warp(torch.device("cpu"))
    assert wp.config.kernel_cache_dir is None  # Warp's own choice
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", None)
    warp_physics.start_warp(torch.device("cpu"))
    assert Path(wp.config.kernel_cache_dir).parent == tmp_path
    monkeypatch.setattr(wp.config, "kernel_cache_dir", None)
    monkeypatch.setenv("WARP_CACHE_PATH", "/nowhere")
    warp_physics.start_warp(torch.device("cpu"))
    assert wp.config.kernel_cache_dir is None
