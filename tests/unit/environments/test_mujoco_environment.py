"""The frame of the MuJoCo environments: first states, threads, broken worlds, refusals, what is
left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, EnvironmentSpec
from podracer_core.environments import make_vec_environment, to_gymnasium
from podracer_core.environments.mujoco import MuJoCoEnvironment
from podracer_core.errors import InvalidInput, PreconditionFailed
from support.errors import raises

IDS = [info.id for info in BUILT_IN_ENVIRONMENTS.values() if info.backend == "mujoco"]


def make(environment_id: str, num_envs: int, **kwargs: Any) -> MuJoCoEnvironment:
    environment = make_vec_environment(EnvironmentSpec(environment_id, kwargs=kwargs), num_envs)
    assert isinstance(environment, MuJoCoEnvironment)
    return environment


def actions_for(environment: MuJoCoEnvironment, steps: int) -> Tensor:
    """Random ones [steps, N, …], the same for a world whatever its neighbours."""
    low, high = (
        torch.as_tensor(bound)
        for bound in (environment.action_space.low, environment.action_space.high)
    )
    generators = [torch.Generator().manual_seed(world) for world in range(environment.num_envs)]
    uniform = torch.stack(
        [torch.rand(steps, *low.shape, generator=generator) for generator in generators], dim=1
    )
    return low + (high - low) * uniform


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("environment_id", IDS)
def test_the_table_says_what_runs(environment_id):
    info, environment = BUILT_IN_ENVIRONMENTS[environment_id], make(environment_id, 1)
    assert info.observation_space is not None
    assert info.action_space is not None
    assert to_gymnasium(info.observation_space) == environment.observation_space
    assert to_gymnasium(info.action_space) == environment.action_space
    assert info.max_episode_steps == environment.max_episode_steps


def test_which_run_on_cuda():
    on_cuda = {name for name in IDS if "cuda" in BUILT_IN_ENVIRONMENTS[name].devices}
    assert on_cuda == {"Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5"}


@pytest.mark.parametrize("environment_id", ["Ant-v5", "Hopper-v5", "InvertedDoublePendulum-v5"])
def test_neither_threads_nor_neighbours_matter(environment_id, threads):
    """Bit by bit, over many ends of episodes."""
    found = []
    for num_envs, count in ((5, 1), (5, 3), (2, 2)):
        torch.set_num_threads(count)
        environment = make(environment_id, num_envs, reset_noise_scale=0.05)
        environment.reset(torch.tensor([3, 1, 4, 1, 5])[:num_envs])
        trajectory = []
        for action in actions_for(environment, 100):
            step = environment.step(action)
            trajectory.append(
                torch.cat([environment.qpos, environment.qvel, step.reward[:, None]], 1)[:2].clone()
            )
        found.append(torch.stack(trajectory))
        assert environment.state()["episode"].sum() > 0 or environment_id == "Ant-v5"
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_state_goes_on_bit_by_bit_with_other_threads(threads):
    """The derived quantities that the next reward starts from are part of it."""
    torch.set_num_threads(2)
    one = make("Humanoid-v5", 3)
    one.reset(torch.arange(3))
    actions = actions_for(one, 40)
    for action in actions[:17]:
        observation = one.step(action).observation
    saved, seen = one.state(), observation.clone()
    torch.set_num_threads(1)
    other = make("Humanoid-v5", 3)
    assert torch.equal(other.load_state(saved), seen)
    for action in actions[17:]:
        expected, found = one.step(action), other.step(action)
        for name in ("observation", "reward", "terminated", "truncated", "final_observation"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e11])
def test_a_broken_world_is_reset_and_counted(number):
    """A twin without the accident shows that the neighbours do not notice."""
    hurt, twin = make("Ant-v5", 3), make("Ant-v5", 3)
    for environment in (hurt, twin):
        environment.reset(torch.tensor([5, 6, 7]))
    actions = actions_for(hurt, 12)
    for index, action in enumerate(actions):
        if index == 4:
            hurt.qvel[1, 3] = number
        found, expected = hurt.step(action), twin.step(action)
        broken = index == 4
        assert found.valid.tolist() == [True, not broken, True]
        assert torch.equal(found.observation[[0, 2]], expected.observation[[0, 2]])
        assert torch.equal(found.reward[[0, 2]], expected.reward[[0, 2]])
        assert found.observation.isfinite().all()
        if broken:
            assert found.truncated.tolist() == [False, True, False]
            assert not found.terminated[1]
            assert found.reward[1] == 0
            assert not found.final_observation[1].any()
            assert torch.equal(
                found.observation[1].double()[:13], hurt.qpos[1, 2:].float().double()
            )
    assert hurt.broken_count.tolist() == [0, 1, 0]
    assert hurt.state()["episode"].tolist() == [0, 1, 0]
    hurt.reset(torch.tensor([5, 6, 7]))
    assert not hurt.broken_count.any()


def test_a_world_that_mujoco_gives_up_is_broken(monkeypatch):
    environment = make("Hopper-v5", 4)
    environment.reset(torch.arange(4))
    step_all = Batch.step

    def fail_in_two(batch: Batch, nstep: int) -> None:
        step_all(batch, nstep=nstep)
        raise SimulationError(np.array([2], np.int32), "mj_stackAlloc: out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Batch, "step", fail_in_two)
        assert environment.step(torch.zeros(4, 3)).valid.tolist() == [True, True, False, True]
    assert environment.step(torch.zeros(4, 3)).valid.all()
    assert environment.broken_count.tolist() == [0, 0, 1, 0]


def test_actions_are_clipped_and_nan_is_zero():
    environment = make("Humanoid-v5", 2)
    environment.reset(torch.arange(2))
    wild = (
        torch.tensor([torch.inf, -torch.inf, torch.nan, 5.0, -5.0, 0.1])
        .repeat(3)[:17]
        .expand(2, 17)
    )
    assert environment.step(wild).valid.all()
    limit = float(np.float32(0.4))
    assert environment.ctrl[0, :5].tolist() == [limit, -limit, 0, limit, -limit]


def test_no_noise_is_the_models_own_state():
    environment = make("HalfCheetah-v5", 2, reset_noise_scale=0)
    environment.reset(torch.tensor([1, 2]))
    assert not environment.qvel.any()
    assert torch.equal(
        environment.qpos, torch.from_numpy(environment.physics.model.qpos0).expand(2, -1)
    )


def test_first_states_are_distributed_as_gymnasiums():
    """Range, mean and spread of 2,000 of them; 5 standard errors."""
    count = 2000
    ant, reacher, pusher = (make(name, count) for name in ("Ant-v5", "Reacher-v5", "Pusher-v5"))
    for environment in (ant, reacher, pusher):
        environment.reset(torch.arange(count))
    noise = ant.qpos - torch.from_numpy(ant.physics.model.qpos0)
    assert noise.abs().max() <= 0.1
    assert noise.mean(0).abs().max() < 5 * 0.1 / (3 * count) ** 0.5
    torch.testing.assert_close(
        ant.qvel.std(0), torch.full_like(ant.qvel[0], 0.1), rtol=0.08, atol=0
    )
    goal = reacher.qpos[:, -2:]
    assert goal.norm(dim=1).max() < 0.2
    # Uniform in a disc: a quarter of it lies within half the radius.
    assert abs((goal.norm(dim=1) < 0.1).double().mean() - 0.25) < 5 * (0.1875 / count) ** 0.5
    assert not reacher.qvel[:, -2:].any()
    x, y = pusher.qpos[:, -4], pusher.qpos[:, -3]
    assert ((x >= -0.3) & (x <= 0) & (y.abs() <= 0.2) & (torch.hypot(x, y) > 0.17)).all()
    # Uniform in a rectangle 0.3 × 0.4 without half a disc of radius 0.17: the part with x < -0.17
    # has 0.052 / 0.0746.
    assert (
        abs((x < -0.17).double().mean() - 0.052 / (0.12 - torch.pi * 0.17**2 / 2))
        < 5 * (0.21 / count) ** 0.5
    )
    assert not pusher.qpos[:, -2:].any()


@pytest.mark.parametrize(
    ("environment_id", "kwargs", "complaint"),
    [
        (
            "Ant-v5",
            {"include_cfrc_ext_in_observation": True},
            "must be false.*entry_point gymnasium.*:AntEnv",
        ),
        ("Humanoid-v5", {"contact_cost_weight": "much"}, "contact_cost_weight: expected a number"),
        (
            "HalfCheetah-v5",
            {"engine": "bullet"},
            "kwargs.engine: expected auto or mujoco or warp, got 'bullet'",
        ),
        ("HalfCheetah-v5", {"frame_skip": 0}, "frame_skip must be 1 to 1000, not 0"),
        ("HalfCheetah-v5", {"frame_skip": 10**9}, "frame_skip must be 1 to 1000, not 1000000000"),
        ("HalfCheetah-v5", {"xml_file": "cheetah.xml"}, "there is no model .*half_cheetah.xml"),
        ("Ant-v5", {"main_body": "tail"}, "main_body must be a body of .*torso.*, not 'tail'"),
        ("Swimmer-v5", {"engine": "warp"}, "does not take these: .*engine"),
        ("Reacher-v5", {"reset_noise_scale": 0.1}, "does not take these: .*reset_noise_scale"),
    ],
)
def test_refusals(environment_id, kwargs, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        make(environment_id, 2, **kwargs)


def test_c_mujoco_is_for_cpus():
    with pytest.raises(InvalidInput, match="Swimmer-v5 runs"):
        make_vec_environment(EnvironmentSpec("Swimmer-v5"), 2, "cuda:0")
    with raises(InvalidInput, field="environment.kwargs.engine"):
        make_vec_environment(EnvironmentSpec("Ant-v5", kwargs={"engine": "mujoco"}), 2, "cuda")


@pytest.mark.parametrize(
    ("environment_id", "xml_file"), [("Pusher-v5", "ant.xml"), ("Ant-v5", "inverted_pendulum.xml")]
)
def test_a_model_without_what_the_task_needs(environment_id, xml_file):
    with raises(InvalidInput, field="environment.kwargs", match=environment_id):
        make(environment_id, 2, xml_file=xml_file)


def test_a_closed_one_is_gone_at_once():
    """Threads, or a GPU's memory, do not wait for the garbage collector."""
    environment = make("Hopper-v5", 4)
    environment.reset(torch.arange(4))
    environment.step(torch.zeros(4, 3))
    saved = environment.state()
    environment.close()
    environment.close()
    for call, argument in (
        ("reset", torch.arange(4)),
        ("step", torch.zeros(4, 3)),
        ("load_state", saved),
    ):
        with pytest.raises(PreconditionFailed, match="closed"):
            getattr(environment, call)(argument)
    gone = weakref.ref(environment), weakref.ref(environment.physics)
    gc.disable()
    try:
        del environment
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_two_threads_step_two_environments():
    """A learner trains in one and judges in the other; MuJoCo's batches know nothing of each
    other."""

    def returns(seed: int) -> Tensor:
        environment = make("Ant-v5", 8)
        environment.reset(torch.arange(8) + seed)
        return torch.stack(
            [environment.step(action).reward.clone() for action in actions_for(environment, 60)]
        )

    alone = [returns(seed) for seed in (0, 100)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(returns, (0, 100)))
    assert all(map(torch.equal, alone, together))


def test_a_model_that_mujoco_cannot_read(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text("<mujoco><worldbody><box/></worldbody></mujoco>")
    with raises(InvalidInput, field="environment.kwargs.xml_file"):
        make("Ant-v5", 1, xml_file=str(path))


def test_nothing_is_left_behind(tmp_path):
    """Neither MuJoCo's log file in the working directory nor its complaint about Gymnasium's
    half_cheetah.xml."""
    program = """if True:
        import torch
        from podracer_core.environments.mujoco import HalfCheetah
        cheetah = HalfCheetah(2)
        cheetah.reset(torch.arange(2))
        print("made", flush=True)
        cheetah.qvel[1] = torch.nan
        print(cheetah.step(torch.zeros(2, 6)).valid.tolist())
    """
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["made", "[True, False]"]
    assert "settotalmass" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_mujoco_only_these_are_missing():
    program = """if True:
        import sys
        sys.modules["mujoco"] = None
        from podracer_core.catalogue import EnvironmentSpec, find_environment
        print(find_environment("Ant-v5").backend)
        from podracer_core.environments import make_vec_environment
        from podracer_core.errors import PreconditionFailed
        make_vec_environment(EnvironmentSpec("CartPole-v1"), 1)
        try:
            make_vec_environment(EnvironmentSpec("Ant-v5"), 1)
        except PreconditionFailed as error:
            print(error.message)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[0] == "mujoco"
    assert "install podracer-core[mujoco]" in done.stdout
