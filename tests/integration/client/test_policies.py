"""`podracer evaluate` and `podracer export` over a real evaluator process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer.evaluator.v1.evaluator_service_pb2 import VideoHeader
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2
from podracer_client.jobs import Job
from podracer_client.policies import Trust, film, policy_folders
from podracer_client.servers import Connection
from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import EnvironmentSpec, StoredFile, to_json
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    evaluate_checkpoints,
    load_actor,
    load_policy,
    open_checkpoint_folder,
    save_checkpoint,
)
from podracer_core.environments import from_gymnasium, make_vec_environment
from podracer_core.errors import DeadlineExpired, InvalidInput, NotFound, PodracerError
from podracer_core.evaluate import GreedyEvaluator, result_to_json
from podracer_core.storage import Manifest
from podracer_platform.storage import open_store
from podracer_platform.training_messages import result_to_message
from support.code import write_files
from support.commands import Result, one_evaluator, run_here
from support.errors import raises
from support.stock_market import market_rows, write_csv

SEEDS = list(range(100, 108))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy for Pendulum-v1, judged on eight episodes."""
    return stored_policy(EnvironmentSpec(id="Pendulum-v1"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def trader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy for a small market."""
    folder = tmp_path_factory.mktemp("market")
    table = write_csv(folder / "prices.csv", market_rows(3, 120, seed=4))
    kwargs = {"table": str(table), "indicators": ["macd", "rsi"], "reward_scale": 100.0}
    return stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), folder)


def stored_policy(
    spec: EnvironmentSpec, folder: Path, number: int = 1, hidden_sizes: tuple[int, ...] = (8, 8)
) -> Path:
    """The folder of a random policy's checkpoint in a store at `folder`."""
    agent = f"a{number:04}"
    environment = make_vec_environment(spec, 1, "cpu")
    cohort = CohortConfig("ppo", (MemberConfig(agent, 6 + number),), {"hidden_sizes": hidden_sizes})
    make = algorithm_class("ppo")
    algorithm = make(cohort, environment.observation_space, environment.action_space)
    evaluator = GreedyEvaluator(
        lambda count: make_vec_environment(spec, count, "cpu", evaluation=True)
    )
    (result,) = evaluator.evaluate(algorithm.actor, SEEDS)
    metadata = {
        "agent": f"projects/default/jobs/j/agents/{agent}",
        "algorithm": "ppo",
        "hyperparameters": {"hidden_sizes": list(hidden_sizes)},
        "environment": spec.to_metadata(),
        "observation_space": to_json(from_gymnasium(environment.observation_space)),
        "action_space": to_json(from_gymnasium(environment.action_space)),
        "env_steps": 4096,
        "evaluation": result_to_json(result),
    }
    prefix = f"projects/default/jobs/u/agents/{agent}/checkpoints/4096-1/"
    save_checkpoint(open_store(folder.as_uri()), prefix, algorithm.member_state(0), metadata)
    return folder / prefix


def podracer(*arguments: object, cwd: Path) -> Result:
    """What a command gives that runs in this process."""
    return run_here(*arguments, cwd=cwd)


@pytest.fixture(scope="module", autouse=True)
def evaluator() -> Iterator[None]:
    with one_evaluator():
        yield


def test_a_process_of_its_own_starts_an_evaluator_of_its_own(checkpoint, tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
    }
    command = [sys.executable, "-m", "podracer_client", "evaluate", str(checkpoint), "--json"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["seeds"] == SEEDS


def test_the_stored_returns_come_again(checkpoint, tmp_path):
    result = podracer("evaluate", checkpoint, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["seeds"] == SEEDS
    assert values["largest_difference"] <= 1e-4
    assert values["returns"] == pytest.approx(values["stored_returns"], abs=1e-4)
    assert (values["agent"], values["environment"]) == (
        "projects/default/jobs/j/agents/a0001",
        "Pendulum-v1",
    )


def test_fresh_episodes_are_other_ones(checkpoint, tmp_path):
    result = podracer(
        "evaluate", checkpoint / "manifest.json", "--episodes", 9, "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["episodes"] == len({*values["seeds"]}) == 9
    assert not {*values["seeds"]} & {*SEEDS}
    assert values["largest_difference"] is None


def test_for_people(checkpoint, tmp_path):
    result = podracer("evaluate", checkpoint, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "policy      a0001 (ppo), Pendulum-v1, 4,096 environment steps" in result.stdout
    assert "difference  0 at most" in result.stdout
    assert result.stdout.count("  seed ") == 8
    assert result.stderr == ""


def test_another_split_of_the_market(trader, tmp_path):
    again = podracer("evaluate", trader, "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["largest_difference"] == 0.0
    result = podracer("evaluate", trader, "--set", "evaluation_split=test", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["set"] == {"evaluation_split": "test"}
    assert values["largest_difference"] is None
    spec = EnvironmentSpec.from_metadata(
        json.loads((trader / "manifest.json").read_text())["metadata"]["environment"]
    )
    spec = replace(spec, kwargs={**spec.kwargs, "evaluation_split": "test"})
    evaluator = GreedyEvaluator(lambda count: make_vec_environment(spec, count, evaluation=True))
    (expected,) = evaluator.evaluate(load_actor(open_checkpoint_folder(trader, POLICY_GROUPS)), [0])
    assert values["returns"] == [pytest.approx(expected.mean)] * 8 != values["stored_returns"]


def test_several_changes_for_people(trader, tmp_path):
    changes = ("--set", "evaluation_split=test", "--set", "buy_cost=0")
    result = podracer("evaluate", trader, *changes, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (
        'changed     evaluation_split="test", buy_cost=0: this is not the stored evaluation again'
        in result.stdout
    )
    assert "stored " in result.stdout
    assert "difference" not in result.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "evaluation_splits=test",
            "environment.kwargs.evaluation_splits: unknown key; did you mean evaluation_split",
        ),
        ("evaluation=true", "Podracer sets this argument"),
        (
            "indicators=[rsi]",
            "the policy was made for observations in Box(-inf, inf, (13,), float32), but "
            "StockTrading",
        ),
        ("evaluation_split", "--set evaluation_split: expected NAME=VALUE"),
        ("cool_down=[", "podracer: --set cool_down:"),
    ],
)
def test_a_change_that_cannot_be(trader, tmp_path, setting, message):
    result = podracer("evaluate", trader, "--set", setting, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_an_exported_policy_acts_with_torch_alone(checkpoint, tmp_path):
    result = podracer("export", checkpoint, "--output", "policy.pt2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "wrote policy.pt2" in result.stdout
    assert "torch.export.load('policy.pt2').module()(observation)" in result.stdout
    policy = torch.export.load(tmp_path / "policy.pt2").module()
    assert policy(torch.zeros(5, 3)).shape == (5, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]


def test_torchscript(checkpoint, tmp_path):
    result = podracer(
        "export", checkpoint, "-o", "policy.pt", "--format", "torchscript", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["size_bytes"] == (tmp_path / "policy.pt").stat().st_size
    assert (values["observations"], values["played_observations"]) == (384, 256)
    assert values["largest_difference"] <= 1e-5
    assert torch.jit.load(tmp_path / "policy.pt")(torch.zeros(2, 3)).shape == (2, 1)


def test_onnx(checkpoint, tmp_path):
    result = podracer("export", checkpoint, "-o", "policy.onnx", "--format", "onnx", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "at most on 384 observations, 256 of them from episodes" in result.stdout
    call = "onnxruntime.InferenceSession('policy.onnx').run(None, {'observation': observation})[0]"
    assert result.stdout.splitlines()[1] == f"load it with {call}"
    assert result.stderr == ""
    observation = torch.randn(5, 3)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    (action,) = session.run(None, {"observation": observation.numpy()})
    trained = load_policy(open_checkpoint_folder(checkpoint, POLICY_GROUPS))
    assert torch.allclose(torch.from_numpy(action), trained(observation), atol=1e-5)


def test_a_video(checkpoint, tmp_path):
    result = podracer(
        "video", checkpoint, "-o", "swing.mp4", "--steps", 3, "--seed", 5, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "wrote swing.mp4 (an episode of 3 steps, not to its end, return -"
    )
    assert b"ftyp" in (tmp_path / "swing.mp4").read_bytes()[:16]
    result = podracer(
        "video", checkpoint, "-o", "swing.gif", "--steps", 3, "--set", "g=1", "--json", cwd=tmp_path
    )
    (values,) = result.events
    assert (values["path"], values["steps"], values["environment"]) == (
        "swing.gif",
        3,
        "Pendulum-v1",
    )
    assert values["size_bytes"] == (tmp_path / "swing.gif").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["swing.gif", "swing.mp4"]


def test_a_page_runs_no_code_that_comes_from_a_server(tmp_path, monkeypatch):
    """What is in the state folder of this machine is its user's own."""
    monkeypatch.setattr(
        "podracer_client.policies.evaluation.private_evaluator", lambda: pytest.fail("reached")
    )
    foreign, own = tmp_path / "foreign", tmp_path / "runs" / "objects" / "own"
    metadata = {"environment": EnvironmentSpec(entry_point="theirs:Environment").to_metadata()}
    for folder in (foreign, own):
        write_files(folder, {"manifest.json": Manifest((), metadata, {}).to_json()})
    with raises(InvalidInput, "UNTRUSTED_ENVIRONMENT", match="you trust"):
        film(str(foreign), FakeClient([]), tmp_path / "runs")  # type: ignore[arg-type]
    with pytest.raises(pytest.fail.Exception, match="reached"):
        film(str(own), FakeClient([]), tmp_path / "runs")  # type: ignore[arg-type]


def test_code_of_a_server_runs_after_one_question_for_each_digest(tmp_path, monkeypatch):
    code = StoredFile("projects/p/artifacts/theirs/code.zip", "c" * 64, 3)
    trust = Trust(tmp_path / "runs")
    with raises(InvalidInput, "UNTRUSTED_ENVIRONMENT", match="--trust"):
        trust.require(code)
    answers = iter([False, True])
    monkeypatch.setattr("typer.confirm", lambda text, err: next(answers))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with pytest.raises(InvalidInput, match="--trust"):
        trust.require(code)
    for _ in range(2):
        trust.require(code)
    other = replace(code, sha256="d" * 64)
    Trust(tmp_path / "runs", given=True).require(other)
    trust.require(other)
    checkpoint = tmp_path / "foreign"
    metadata = {
        "environment": EnvironmentSpec(
            entry_point="a:B", code=replace(code, sha256="e" * 64)
        ).to_metadata()
    }
    write_files(checkpoint, {"manifest.json": Manifest((), metadata, {}).to_json()})
    monkeypatch.setattr("typer.confirm", lambda text, err: False)
    for command in (("evaluate",), ("video", "-o", "x.mp4")):
        refused = podracer(*command, checkpoint, cwd=tmp_path)
        assert refused.returncode == 2
        assert "--trust" in refused.stderr


def test_a_video_for_a_page_is_short_and_small(monkeypatch):
    asked: dict[str, Any] = {}

    def record(policies: list[str], output: Path, *others: Any, **limits: Any) -> VideoHeader:
        asked.update(limits)
        if policies == ["slow"]:
            raise DeadlineExpired("too late")
        return VideoHeader(frame_count=2, size_bytes=(8 << 20) + 1)

    monkeypatch.setattr("podracer_client.policies.evaluation.record", record)
    with raises(InvalidInput, "TOO_LARGE"):
        film("large", FakeClient([]), None)  # type: ignore[arg-type]
    with pytest.raises(DeadlineExpired, match="filmed within 120"):
        film("slow", FakeClient([]), None)  # type: ignore[arg-type]
    assert asked == {"only_own_code": True, "timeout_s": 120.0, "step_limit": 1000}


def test_what_draws_no_pictures(trader, tmp_path):
    result = podracer("video", trader, "-o", "trade.mp4", cwd=tmp_path)
    assert (result.returncode, "StockTrading-v0 cannot be filmed" in result.stderr) == (2, True), (
        result.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of two shapes, in the object store of a state folder."""
    objects = tmp_path_factory.mktemp("three") / "runs" / "objects"
    pendulum = EnvironmentSpec(id="Pendulum-v1")
    return [
        stored_policy(pendulum, objects, number, sizes)
        for number, sizes in ((1, (8,)), (2, (8, 8)), (3, (8,)))
    ]


class TestTogether:
    """Several policies act as one."""

    def test_beside_each_alone(self, three, tmp_path):
        result = podracer("evaluate", *three, "--episodes", 12, "--json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        values = json.loads(result.stdout)
        spec, seeds = EnvironmentSpec(id="Pendulum-v1"), values["seeds"]
        assert len({*seeds}) == values["episodes"] == 12
        policies = [open_checkpoint_folder(folder, POLICY_GROUPS) for folder in three]
        together = evaluate_checkpoints(policies, spec, seeds)
        assert values["ensemble"] == "mean"
        assert values["returns"] == list(together.returns)
        assert (values["mean"], values["variance"]) == pytest.approx(
            (together.mean, together.std**2)
        )
        assert (values["lower_bound"], values["upper_bound"]) == pytest.approx(
            (together.lower_bound, together.upper_bound)
        )
        assert [member["agent"][-5:] for member in values["members"]] == ["a0001", "a0002", "a0003"]
        alone = [evaluate_checkpoints([policy], spec, seeds) for policy in policies]
        assert [member["returns"] for member in values["members"]] == [
            list(one.returns) for one in alone
        ]
        assert values["median_alone"] == pytest.approx(sorted(one.mean for one in alone)[1])

    def test_for_people(self, three, tmp_path):
        result = podracer(
            "evaluate",
            *three[:2],
            "--episodes",
            3,
            "--rule",
            "mean",
            "--set",
            "g=9.0",
            cwd=tmp_path,
        )
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[0] == "policies    2, together by mean, Pendulum-v1"
        assert lines[1] == "changed     g=9.0"
        assert lines[2].startswith("mean        -")
        assert lines[2].endswith(", 3 episodes)")
        assert lines[3].startswith("variance    ")
        assert [line.split()[:3] for line in lines[6:]] == [
            ["1", "a0001", "ppo"],
            ["2", "a0002", "ppo"],
        ]

    def test_exported_as_one(self, three, tmp_path):
        result = podracer("export", *three, "-o", "policy.pt2", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "wrote policy.pt2 of 3 policies, together by mean" in result.stdout
        observation = torch.randn(5, 3)
        alone = [
            load_policy(open_checkpoint_folder(folder, POLICY_GROUPS))(observation)
            for folder in three
        ]
        acted = torch.export.load(tmp_path / "policy.pt2").module()(observation)
        assert torch.allclose(acted, torch.stack(alone).mean(0), atol=1e-6)

    def test_what_cannot_act_together(self, three, trader, tmp_path):
        result = podracer("evaluate", *three, "--rule", "vote", cwd=tmp_path)
        assert (result.returncode, "use mean, not vote" in result.stderr) == (2, True)
        result = podracer("export", three[0], trader, cwd=tmp_path)
        assert result.returncode == 2
        assert "a0001 was trained in Pendulum-v1" in result.stderr
        assert "a0001 in StockTrading-v0" in result.stderr
        assert list(tmp_path.iterdir()) == []


class FakeClient:
    """A server with a leaderboard of three candidates and their checkpoints."""

    def __init__(self, three: list[Path], orchestrator: str = "127.0.0.1:1") -> None:
        self._three = three
        self.connection = Connection(orchestrator, "127.0.0.1:2", str)
        self.downloads: list[str] = []
        self.confirmed = agent_pb2.Evaluation()

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @property
    def artifact_service(self) -> FakeClient:
        return self

    def GetArtifact(self, request: Any) -> artifact_service_pb2.GetArtifactResponse:
        if request.name != "projects/default/jobs/j/checkpoints/best":
            raise NotFound(f"there is no job {request.name.removesuffix('/checkpoints/best')}")
        name, uri = (
            f"projects/default/jobs/{job}/agents/a0002/checkpoints/4096-1" for job in ("j", "u")
        )
        return artifact_service_pb2.GetArtifactResponse(artifact={"name": name, "uri": f"{uri}/"})

    def leaderboard(self, name: str) -> leaderboard_service_pb2.Leaderboard:
        if name != "projects/default/leaderboards/j":
            raise NotFound(f"there is no leaderboard {name}")
        board = leaderboard_service_pb2.Leaderboard(name=name)
        for rank, number in enumerate((2, 3, 1), 1):
            agent = f"projects/default/jobs/j/agents/a{number:04}"
            candidate = board.candidates.add(
                rank=rank, agent=leaderboard_service_pb2.Agent(name=agent)
            )
            candidate.evaluation.checkpoint.prefix = (
                f"projects/default/jobs/u/agents/a{number:04}/checkpoints/4096-1/"
            )
        return board

    def evaluations(self, name: str) -> Iterator[agent_pb2.Evaluation]:
        """Of five snapshots; the candidates were looked at before."""
        for number, env_steps in ((1, 2048), (1, 4096), (2, 4096), (2, 4096), (3, 2048), (3, 4096)):
            yield agent_pb2.Evaluation(agent=f"{name}/agents/a{number:04}", env_steps=env_steps)

    def job(self, name: str) -> Job:
        message = job_pb2.Job(name=name if "/" in name else f"projects/default/jobs/{name}")
        message.progress.best.CopyFrom(self.confirmed)
        return Job(self, message)  # type: ignore[arg-type]

    def full_name(self, job: str) -> str:
        return self.job(job).name

    def download(self, name: str, target: Path) -> None:
        self.downloads.append(name)
        number = int(name.split("/")[5].removeprefix("a"))
        if not self._three[number - 1].exists():
            raise NotFound(f"there is no checkpoint {name}")
        shutil.copytree(self._three[number - 1], target)


class TestCandidates:
    """Which checkpoints a job's best candidates are, and where they are read."""

    @staticmethod
    def agents(folders: list[Path]) -> list[str]:
        return [open_checkpoint_folder(folder, ()).metadata["agent"][-5:] for folder in folders]

    def test_of_a_server(self, three, tmp_path):
        client = FakeClient(three)
        for names, count, expected in (
            (["j"], 2, ["a0002", "a0003"]),
            (["projects/default/jobs/j"], 3, ["a0002", "a0003", "a0001"]),
            (["j"], 0, ["a0002"]),
            ([str(three[0]), "j"], 0, ["a0001", "a0002"]),
        ):
            with policy_folders(names, count, lambda: client, tmp_path) as folders:  # type: ignore[arg-type, return-value]
                assert self.agents(folders) == expected
            assert not folders[-1].exists(), "fetched for the time being"
        assert client.downloads[0] == "projects/default/jobs/j/agents/a0002/checkpoints/4096-1"

    def test_of_the_state_folder_of_a_server_nothing_is_fetched(self, three):
        client = FakeClient(three)
        runs = next(parent for parent in three[0].parents if parent.name == "runs")
        with policy_folders(["j"], 3, lambda: client, runs) as folders:  # type: ignore[arg-type, return-value]
            assert folders == [three[1], three[2], three[0]]
        assert client.downloads == []

    def test_of_a_state_folder_where_nothing_runs(self, three, monkeypatch):
        def no_server() -> Any:
            raise NotFound("no server runs", reason="NO_SERVER")

        runs = next(parent for parent in three[0].parents if parent.name == "runs")
        with (
            raises(NotFound, "NO_SERVER"),
            policy_folders(["j"], 2, no_server, runs),
        ):
            pass
        (runs / "leaderboard.sqlite").touch()
        (runs / "orchestrator.sqlite").touch()
        monkeypatch.setattr(
            "podracer_client.local.services.resting_leaderboard",
            lambda folder: FakeClient(three, ""),
        )
        monkeypatch.setattr(
            "podracer_client.local.services.resting_services", lambda folder: FakeClient(three)
        )
        with policy_folders(
            ["projects/default/jobs/j/checkpoints/best"], 0, no_server, runs
        ) as folders:
            assert folders == [three[1]]
        with policy_folders(["j"], 2, no_server, runs) as folders:
            assert folders == [three[1], three[2]]

    def test_evaluate_repeats_the_jobs_result(self, three, tmp_path, monkeypatch):
        client = FakeClient(three)
        seeds = list(range(200, 212))
        pendulum = EnvironmentSpec(id="Pendulum-v1")
        result = evaluate_checkpoints(
            [open_checkpoint_folder(three[1], POLICY_GROUPS)], pendulum, seeds
        )
        client.confirmed = result_to_message(result)
        client.confirmed.purpose = agent_pb2.EVALUATION_PURPOSE_FINAL
        client.confirmed.checkpoint.prefix = (
            "projects/default/jobs/u/agents/a0002/checkpoints/4096-1/"
        )
        monkeypatch.setattr(
            "podracer_client.command.options.ServerOptions.connect", lambda self: client
        )
        values = json.loads(podracer("evaluate", "j", "--json", cwd=tmp_path).stdout)
        assert (values["agent"][-5:], values["seeds"], values["stored_returns"]) == (
            "a0002",
            seeds,
            [*result.returns],
        )
        assert values["largest_difference"] <= 1e-4
        client.confirmed.checkpoint.prefix = "another policy's/"
        values = json.loads(podracer("evaluate", "j", "--json", cwd=tmp_path).stdout)
        assert (values["agent"][-5:], values["seeds"]) == ("a0002", SEEDS)

    def test_what_is_not_there(self, three, tmp_path):
        def refused(names: list[str], count: int) -> str:
            with pytest.raises(PodracerError) as error:  # noqa: SIM117
                with policy_folders(names, count, lambda: FakeClient(three), tmp_path):  # type: ignore[arg-type, return-value]
                    pass
            return error.value.message

        assert "j has 3 candidates on its leaderboard, not 4" in refused(["j"], 4)
        assert "expects exactly one job" in refused(["j", "k"], 2)
        assert "there is no leaderboard projects/default/leaderboards/k" in refused(["k"], 2)
        assert "there is no checkpoint k here" in refused(["k"], 0)
        assert "is not the name of a job" in refused([str(three[0])], 2)


def test_a_damaged_checkpoint(checkpoint, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in checkpoint.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "actor.safetensors").write_bytes(b"junk")
    result = podracer("export", damaged, cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    assert "actor.safetensors" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "policy.pt2").exists()
    (damaged / "manifest.json").write_bytes(bytes(range(256)))
    result = podracer("evaluate", damaged, cwd=tmp_path)
    assert result.returncode in (1, 2)
    assert "manifest" in result.stderr
    assert "Traceback" not in result.stderr
