"""A real policy server: what it answers, whom it refuses, and policies exchanged while it acts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc
import gymnasium
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podracer.common.v1 import tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_client import PolicyClient
from podracer_core.checkpoint import load_ensemble_policy, load_policy, pack_policy
from podracer_core.environments import from_gymnasium, observation_array_space
from podracer_core.errors import (
    AlreadyExists,
    DataCorrupted,
    InvalidInput,
    NotFound,
    PermissionRefused,
    PodracerError,
    Unauthenticated,
)
from podracer_core.in_process import Policy
from podracer_platform.messages import space_from_message
from support.errors import raises
from support.policies import random_policy, with_origin, with_original_space
from support.processes import wait_until

from .conftest import BOX, CHOICE, torque_policy

pytestmark = pytest.mark.processes

OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_acts_as_the_local_policy_does(site):
    checkpoints = [torque_policy(seed) for seed in (0, 1)]
    one, two = (
        site.checkpoint(f"c{seed}", checkpoint) for seed, checkpoint in enumerate(checkpoints)
    )
    choices = random_policy("ppo", BOX, CHOICE, 2)
    site.serve(
        policies=f"alone={one},both={one},both={two},choices={site.checkpoint('c2', choices)}"
    )
    expected = {
        "alone": load_policy(checkpoints[0])(torch.tensor(OBSERVATIONS)).numpy(),
        "both": load_ensemble_policy(checkpoints)(torch.tensor(OBSERVATIONS)).numpy(),
        "choices": load_policy(choices)(torch.tensor(OBSERVATIONS)).numpy(),
    }
    with site.client() as client:
        assert [policy.name for policy in client.policies()] == ["alone", "both", "choices"]
        for name, actions in expected.items():
            answer = client.answer(OBSERVATIONS, policy=name)
            assert (answer.policy, answer.version) == (name, client.policy(name).version)
            assert answer.actions.dtype == actions.dtype
            np.testing.assert_array_equal(answer.actions, actions)
            single = client.act(OBSERVATIONS[0].tolist(), policy=name)
            assert single.shape == actions.shape[1:]
            np.testing.assert_allclose(single, actions[0], rtol=0, atol=1e-5)
        assert client.policy("both").ensemble == "mean"
        assert client.policy("alone").request_count == 2
        masks = np.eye(4, dtype=bool)
        assert client.act(OBSERVATIONS[:4], policy="choices", action_mask=masks).tolist() == [
            0,
            1,
            2,
            3,
        ]
        numbers = pb.ActRequest(policy="alone", values=OBSERVATIONS.ravel().tolist())
        np.testing.assert_allclose(
            client.policy_service.Act(numbers).values, expected["alone"].ravel(), rtol=0, atol=1e-6
        )


def test_takes_the_parts_of_an_observation_by_name(site):
    hand = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(32), gymnasium.spaces.Discrete(2, start=1)]
    )
    robot = gymnasium.spaces.Dict(
        speed=BOX, camera=gymnasium.spaces.Box(0, 9, (2, 2), np.uint16), hand=hand
    )
    stored = {
        name: with_original_space(
            random_policy("ppo", observation_array_space(space), CHOICE, 0), space
        )
        for name, space in {"hand": hand, "robot": robot, "empty": gymnasium.spaces.Dict()}.items()
    }
    site.serve(
        policies=",".join(
            f"{name}={site.checkpoint(name, policy)}" for name, policy in stored.items()
        )
    )
    with site.client() as client:
        described = client.policy("robot")
        assert space_from_message(described.original_observation_space) == from_gymnasium(robot)
        assert described.observation_space.box.shape == [41]
        places = [(part.name, part.offset, part.size) for part in described.parts]
        assert places == [("speed", 0, 3), ("camera", 3, 4), ("hand/0", 7, 32), ("hand/1", 39, 2)]
        robot.seed(0)
        for name, observations in {
            "robot": [robot.sample() for _ in range(8)],
            "hand": [(card, ace) for card in range(0, 32, 5) for ace in (1, 2)],
        }.items():
            rows = np.array(
                [
                    gymnasium.spaces.flatten(robot if name == "robot" else hand, each)
                    for each in observations
                ]
            )
            expected = client.act(rows, policy=name)
            assert [
                int(client.act(each, policy=name)) for each in observations
            ] == expected.tolist()
        batch = (
            np.array([one for one, _ in observations]),
            np.array([two for _, two in observations]),
        )
        assert client.act(batch, policy="hand").tolist() == expected.tolist()
        assert client.act({}, policy="empty").shape == ()
        for wrong, message in (
            ((3, 5), "parts: 1: expected a whole number from 1 to 2, got 5"),
            ((3,), r"expected Tuple\(Discrete\(32\), Discrete\(2\)\), got the parts 0"),
            ((np.zeros(2000), np.ones(2000)), "expected 1 to 1024 rows, got 2000"),
        ):
            with pytest.raises(InvalidInput, match=message):
                client.act(wrong, policy="hand")


def test_tells_seconds_since_1970_apart(site):
    checkpoint = with_origin(random_policy("ppo", BOX, CHOICE, 2), 1.7e9)
    served = site.checkpoint("c", checkpoint)
    torques = with_origin(torque_policy(7), 1.7e9)
    site.serve(policies=f"choices={served},torques={site.checkpoint('c1', torques)}")
    times = np.array([[1_700_000_000, 1, 0], [1_700_000_001, 1, 0]], np.float64)
    expected = Policy(torques)(times)
    assert abs(expected[0] - expected[1]).max() > 0.01
    with site.client() as client:
        assert client.policy("torques").observation_space.box.dtype == tensor_pb2.DATA_TYPE_FLOAT64
        for given in (times, times.astype(np.int64), {"observation": times}):
            np.testing.assert_allclose(
                client.act(given, policy="torques"), expected, rtol=0, atol=1e-5
            )
        message = tensor_pb2.Tensor(
            dtype=tensor_pb2.DATA_TYPE_INT64,
            shape=times.shape,
            inline=times.astype(np.int64).tobytes(),
        )
        answer = client.policy_service.Act(pb.ActRequest(policy="torques", observations=message))
        np.testing.assert_allclose(
            np.frombuffer(answer.actions.inline, np.float32), expected.ravel(), rtol=0, atol=1e-5
        )
        with raises(InvalidInput, "BAD_OBSERVATION", field="observations.dtype"):
            client.act(times.astype(np.float32), policy="torques")
        numbers = pb.ActRequest(policy="torques", values=times.ravel().tolist())
        np.testing.assert_allclose(
            client.policy_service.Act(numbers).values, expected.ravel(), rtol=0, atol=1e-5
        )
        masks = np.eye(4, dtype=bool)[:2]
        assert client.act(times, policy="choices", action_mask=masks).tolist() == [0, 1]


def test_a_stream_answers_in_order_and_goes_on_after_a_refusal(site):
    site.serve(policies=f"p={site.checkpoint('c', torque_policy(0))}")

    def requests() -> Iterator[pb.ActStreamRequest]:
        for number in range(200):
            act = pb.ActRequest(values=[0.1 * number] * (2 if number == 7 else 3))
            yield pb.ActStreamRequest(request_id=number, act=act)

    with site.client() as client:
        answers = list(client.policy_service.ActStream(requests(), timeout=60))
        assert [answer.request_id for answer in answers] == list(range(200))
        assert [answer.request_id for answer in answers if answer.HasField("problem")] == [7]
        assert "expected 3 numbers" in answers[7].problem.message
        forever = threading.Event()

        def endless() -> Iterator[pb.ActStreamRequest]:
            yield pb.ActStreamRequest(request_id=1, act=pb.ActRequest(values=[0.0] * 3))
            forever.wait(60)

        stream = client.policy_service.ActStream(endless(), timeout=60)
        assert next(stream).request_id == 1
        site.processes["policy"].terminate()
        assert next(stream).draining
        forever.set()
        assert site.processes["policy"].wait(60) == 0


def tensor(
    values: object,
    dtype: str = "float32",
    name: tensor_pb2.DataType.ValueType = tensor_pb2.DATA_TYPE_FLOAT32,
) -> tensor_pb2.Tensor:
    array = np.asarray(values, dtype=dtype)
    return tensor_pb2.Tensor(dtype=name, shape=array.shape, inline=array.tobytes())


def test_wrong_requests_are_refused_by_field_and_change_nothing(site):
    site.serve(
        policies=f"p={site.checkpoint('c', torque_policy(0))},"
        f"d={site.checkpoint('d', random_policy('ppo', BOX, CHOICE, 1))}"
    )
    right = tensor([[0.0] * 3])
    nothing_allowed = tensor([[0] * 4], "bool", tensor_pb2.DATA_TYPE_BOOL)
    cut = tensor_pb2.Tensor(dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[1, 3], inline=b"1234")
    bad: list[tuple[dict[str, object], str]] = [
        ({}, "exactly one of observations, values and parts"),
        ({"observations": right, "values": [0.0] * 3}, "exactly one"),
        (
            {"observations": tensor([[0.0] * 4])},
            r"observations.shape: expected \[B, 3\], or \[3\] .* got \[1, 4\]",
        ),
        ({"observations": tensor(np.zeros((0, 3)))}, "expected 1 to 1024 rows, got 0"),
        ({"observations": tensor(np.zeros((1025, 3)))}, "expected 1 to 1024 rows, got 1025"),
        (
            {"observations": tensor([[0] * 3], "uint8", tensor_pb2.DATA_TYPE_UINT8)},
            "dtype: expected FLOAT32, got UINT8",
        ),
        (
            {"observations": tensor([[0.0, np.nan, 0.0]])},
            r"expected finite numbers, got nan at \[0, 1\]",
        ),
        ({"observations": tensor([[0.0, 0.0, -np.inf]])}, r"got -inf at \[0, 2\]"),
        (
            {"observations": tensor([[1e300] * 3], "float64", tensor_pb2.DATA_TYPE_FLOAT64)},
            "finite",
        ),
        ({"observations": cut}, "12 bytes, 4 came"),
        ({"values": [0.0] * 4}, "expected 3 numbers for each"),
        ({"values": [float("nan")] * 3}, "values: expected finite"),
        ({"values": [1e300] * 3}, "values: expected finite"),
        ({"observations": right, "action_masks": nothing_allowed}, "know no masks"),
        (
            {"policy": "d", "observations": right, "action_masks": nothing_allowed},
            "place 0 of mask 0 allows nothing",
        ),
        (
            {"policy": "d", "observations": right, "action_masks": right},
            "expected BOOL, got FLOAT32",
        ),
    ]
    with site.client() as client:
        for fields, problem in bad:
            request = pb.ActRequest(**{"policy": "p", **fields})  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match=problem) as caught:
                client.policy_service.Act(request)
            assert caught.value.violations
        with raises(NotFound, "UNKNOWN_POLICY", match="policy 'x'; served"):
            client.act(OBSERVATIONS, policy="x")
        with raises(NotFound, "UNKNOWN_VERSION"):
            client.act(OBSERVATIONS, policy="p", version="7")
        with raises(NotFound, "UNKNOWN_POLICY", match="names"):
            client.act(OBSERVATIONS)
        assert client.policy("p").request_count == 0


def test_who_acts_cannot_exchange(tls_site):
    tls_site.serve(policies=f"p={tls_site.checkpoint('c', torque_policy(0))}")
    packed = pack_policy(torque_policy(1))
    with tls_site.client() as client, tls_site.client("control") as operator:
        assert client.act(OBSERVATIONS).shape == (5, 1)
        with pytest.raises(PermissionRefused):
            client.load("p", "2", [packed])
        with pytest.raises(PermissionRefused):
            client.unload("p")
        assert operator.load("p", "2", [packed]).versions == ["2", "a0-4096"]
        expected = load_policy(torque_policy(1))(torch.tensor(OBSERVATIONS)).numpy()
        np.testing.assert_array_equal(client.act(OBSERVATIONS), expected)
        operator.unload("p")
        with pytest.raises(NotFound):
            client.act(OBSERVATIONS)
    address, tls = tls_site.addresses["policy"], tls_site.secrets / "tls" / "client"
    with PolicyClient(address, token="wrong", tls=tls) as stranger, pytest.raises(Unauthenticated):
        stranger.policies()
    with PolicyClient(address, token="wrong") as plain, pytest.raises(PodracerError):
        plain.policies()


def test_bad_policies_are_refused_and_the_served_one_stays(site):
    site.serve(policies=f"p={site.checkpoint('c', torque_policy(0))}")
    packed = pack_policy(torque_policy(1))
    with site.client("control") as client:
        before = client.act(OBSERVATIONS)
        with pytest.raises(DataCorrupted, match="a packed policy"):
            client.load("p", "2", [b"something else"])
        with raises(InvalidInput, "ENSEMBLE_RULE"):
            client.load("p", "2", [packed, packed], rule="vote")
        with raises(InvalidInput, field="version"):
            client.load("p", "", [packed])
        with raises(InvalidInput, field="checkpoints"):
            client.load("p", "2", [])
        with pytest.raises(AlreadyExists, match="another version a0-4096"):
            client.load("p", "a0-4096", [packed])
        header = pb.LoadPolicyHeader(name="p", version="2")
        header.checkpoints.add(sha256="0" * 64, size_bytes=4)
        for pieces, error in (
            (
                [pb.LoadPolicyRequest(header=header), pb.LoadPolicyRequest(data=b"1234")],
                DataCorrupted,
            ),
            (
                [pb.LoadPolicyRequest(header=header), pb.LoadPolicyRequest(data=b"12345")],
                DataCorrupted,
            ),
            ([pb.LoadPolicyRequest(header=header)] * 2, InvalidInput),
            ([pb.LoadPolicyRequest(data=b"1")], InvalidInput),
            ([], InvalidInput),
        ):
            with pytest.raises(error):
                client.policy_service.LoadPolicy(iter(pieces), timeout=60)
        assert client.policy("p").versions == ["a0-4096"]
        np.testing.assert_array_equal(client.act(OBSERVATIONS), before)


def test_exchanged_under_load_without_an_error(site):
    checkpoints = [torque_policy(seed) for seed in range(4)]
    site.serve(policies=f"p={site.checkpoint('c', checkpoints[0])}")
    expected = [load_policy(one)(torch.tensor(OBSERVATIONS)).numpy() for one in checkpoints]
    by_version = {"a0-4096": expected[0]} | {
        f"v{number}": expected[number % 4] for number in range(1, 13)
    }
    done, problems, seen = threading.Event(), list[str](), set[str]()

    def load() -> None:
        with site.client() as client:
            while not done.is_set():
                try:
                    answer = client.answer(OBSERVATIONS, timeout_s=60)
                except PodracerError as error:
                    problems.append(error.message)
                    return
                seen.add(answer.version)
                if not np.allclose(answer.actions, by_version[answer.version], rtol=0, atol=1e-4):
                    problems.append(f"{answer.version} acted as another")

    callers = [threading.Thread(target=load) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        with site.client("control") as operator:
            for number in range(1, 13):
                operator.load("p", f"v{number}", [pack_policy(checkpoints[number % 4])])
                if number % 4 == 0:
                    wait_until(
                        lambda number=number: problems or f"v{number}" in seen,
                        60,
                        "an answer of this version",
                    )
    finally:
        done.set()
        for caller in callers:
            caller.join(60)
    assert not problems
    assert {"v4", "v8", "v12"} <= seen


def test_killed_and_started_again_it_is_found_again(site):
    settings = {
        "policies": f"p={site.checkpoint('c', torque_policy(0))}",
        "health_listen": "127.0.0.1:0",
    }
    site.serve(**settings)
    with site.client() as client:
        before = client.act(OBSERVATIONS)
        site.kill("policy")
        site.processes["policy"].wait(60)
        site.serve(**settings)
        np.testing.assert_array_equal(client.act(OBSERVATIONS, timeout_s=60), before)
    with grpc.insecure_channel(site.addresses["policy"]) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ("nothing", "expected NAME=FOLDER or NAME=projects/p/jobs/j@alias, got 'nothing'"),
        ("p=/does/not/exist", "no checkpoint at /does/not/exist"),
        ("p=projects/default/jobs/j@champion", "PODRACER_LEADERBOARD: is not set"),
        ("p=projects/default/jobs/j@champion,p=/a", "p is there twice"),
        ("a/b=/c", "PODRACER_POLICIES: expected 1 to 100 letters"),
    ],
)
def test_bad_settings_are_one_line(site, policies, problem):
    environment = {
        "PODRACER_TOKENS": str(site.secrets / "tokens"),
        "PODRACER_POLICIES": policies,
        "PATH": "",
    }
    run = subprocess.run(
        [sys.executable, "-m", "podracer_policy"],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert run.returncode == 2
    assert problem in run.stderr
    assert run.stderr.count("\n") == 1
