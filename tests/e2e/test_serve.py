"""`podracer serve`: the policies of a job, and an alias that is moved while the policy server
acts."""

from __future__ import annotations

import signal

import numpy as np

from podracer.leaderboard.v1 import leaderboard_service_pb2, leaderboard_service_pb2_grpc
from podracer_client import Client, PolicyClient
from podracer_core.errors import Unavailable
from podracer_platform.rpc import FileToken, open_channel
from support.processes import wait_until

JOB = """\
name: served
environment: {id: Pendulum-v1}
objective: {max_env_steps: 8_192}
search: {algorithms: [ppo]}
evolution: {population: 2, leaderboard_size: 2, round: {env_steps: 2_048}}
pod: {count: {min: 1, max: 1}, members: 1, envs_per_member: 8, layout: fused}
evaluation: {episodes: 8}
seed: 0
"""
OBSERVATIONS = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)


def test_an_alias_is_followed_and_what_is_served_stays(podracer, up, run, tmp_path):
    (tmp_path / "served.yaml").write_text(JOB)
    server = up()
    tokens = tmp_path / "runs" / "tokens"
    with Client.connect(folder=tmp_path / "runs") as client:
        trained = client.submit(tmp_path / "served.yaml").wait()
        job, board = trained.name, trained.message.leaderboard
        first, second = client.leaderboard(board).candidates[:2]
        leaderboard = client.connection.leaderboard

    def point_at(agent: str) -> None:
        with open_channel(leaderboard, FileToken(tokens / "control")) as channel:
            stub = leaderboard_service_pb2_grpc.LeaderboardServiceStub(channel)
            stub.SetAlias(
                leaderboard_service_pb2.SetAliasRequest(
                    leaderboard=board, alias="champion", agent=agent
                )
            )

    refused = run("serve", f"{job}@champion")
    assert refused.returncode == 2
    assert "no alias champion" in refused.stderr
    point_at(first.agent.name)
    policies = (f"live={job}@champion", f"best={job}")
    serve = podracer("serve", *policies, "--listen", "127.0.0.1:0", "--follow-interval", "0.2")
    wait_until(
        lambda: any(line.startswith("stop") for line in serve.lines), 120, "the policy server"
    )
    listen = next(line.split()[-1] for line in serve.lines if line.startswith("policy server"))
    with PolicyClient(listen, token_file=tokens / "client") as policies:
        before = policies.answer(OBSERVATIONS, policy="live")
        assert before.version.startswith(first.agent.name.rpartition("/")[2])
        np.testing.assert_array_equal(before.actions, policies.act(OBSERVATIONS, policy="best"))
        point_at(second.agent.name)
        wait_until(
            lambda: policies.policy("live").version != before.version, 60, "the new champion"
        )
        after = policies.answer(OBSERVATIONS, policy="live")
        assert after.version.startswith(second.agent.name.rpartition("/")[2])
        np.testing.assert_array_equal(
            policies.act(OBSERVATIONS, policy="live", version=before.version), before.actions
        )
        point_at(first.agent.name)
        wait_until(
            lambda: policies.policy("live").version == before.version,
            60,
            "the champion that is back",
        )

        (policy_server,) = serve.services("podracer_policy")
        policy_server.send_signal(signal.SIGKILL)

        def acts_again() -> bool:
            try:
                return bool((policies.act(OBSERVATIONS, policy="live") == before.actions).all())
            except Unavailable:
                return False

        wait_until(acts_again, 60, "the policy server that is started again")
        server.interrupt()
        server.wait(60)
        assert policies.answer(OBSERVATIONS, policy="live").version == before.version
    serve.interrupt()
    assert serve.wait(60) == 130
