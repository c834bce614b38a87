"""Reports of a real orchestrator and a real leaderboard: at rest in their folder, and over gRPC."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2_grpc
from podracer_client.__main__ import main
from podracer_client.jobs import Client
from podracer_client.local import resting_services
from podracer_client.report import environment_rows, request_rows
from podracer_client.servers import FILE_NAME
from podracer_core.errors import NotFound, PreconditionFailed
from podracer_platform.jobs import parse_job
from podracer_platform.rpc import FileToken, open_channel
from support.processes import wait_until

JOB = """
name: grid-{seed}
environment: CartPole-v1
objective: {{target_return: 475, statistic: mean, max_env_steps: 100_000}}
search: {{algorithms: [ppo], space: {{learning_rate: {{log_uniform: [1.0e-3, 1.0e-2]}}}}}}
evolution: {{population: 3, leaderboard_size: 2, round: {{env_steps: 1000}}}}
seed: {seed}
labels: {{experiment: grid, matrix.seed: "{seed}", note: "<b>mine</b>"}}
"""
EVALUATIONS = 1203
"""More than a page of ListEvaluations."""


def evaluation(agent: str, number: int, purpose: int, mean: float) -> agent_pb2.Evaluation:
    message = agent_pb2.Evaluation(
        evaluation_id=f"{agent}/{number}",
        agent=agent,
        purpose=purpose,  # type: ignore[arg-type]
        mean=mean,
        lower_bound=mean - 10.0,
        upper_bound=mean + 10.0,
        returns=[mean - 1.0, mean + 1.0],
        env_steps=2 * number,
    )
    message.create_time.GetCurrentTime()
    if purpose == agent_pb2.EVALUATION_PURPOSE_CANDIDATE:
        message.checkpoint.prefix = f"{agent}/checkpoints/{number}-1/"
        message.checkpoint.manifest_sha256 = "0" * 64
    return message


def populate(client: Client, folder: Path, board: str) -> None:
    """A cohort is proposed, evaluated and judged, as the orchestrator would have it."""
    control = FileToken(folder / "tokens" / "control")
    with open_channel(client.connection.leaderboard, control) as channel:
        stub = leaderboard_service_pb2_grpc.LeaderboardServiceStub(channel)
        cohort = stub.ProposeCohort(
            leaderboard_pb2.ProposeCohortRequest(leaderboard=board, request_id="work-1", places=3)
        )
        names = [proposal.agent.name for proposal in cohort.proposals]
        progress = [
            evaluation(names[0], number, agent_pb2.EVALUATION_PURPOSE_PROGRESS, float(number % 400))
            for number in range(1, EVALUATIONS)
        ]
        for start in range(0, len(progress), 1000):
            batch = progress[start : start + 1000]
            stub.RecordEvaluations(
                leaderboard_pb2.RecordEvaluationsRequest(leaderboard=board, evaluations=batch)
            )
        for place, name in enumerate(names):
            judged = evaluation(
                name, EVALUATIONS, agent_pb2.EVALUATION_PURPOSE_CANDIDATE, 200.0 + place
            )
            request = leaderboard_pb2.SubmitCandidateRequest(
                leaderboard=board,
                request_id=f"work-1/{place}",
                agent=name,
                candidate=judged,
                env_steps=1000,
            )
            request.latest.CopyFrom(judged.checkpoint)
            request.cost.seconds = 5
            stub.SubmitCandidate(request)


def leaderboard_is_there(client: Client, board: str) -> bool:
    try:
        client.leaderboard(board)
    except NotFound:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two jobs were submitted and no pod has ever come; the first job has agents all the
    same."""
    folder = tmp_path_factory.mktemp("state")
    with resting_services(folder) as client:
        for seed in (0, 1):
            client.submit(parse_job(JOB.format(seed=seed)), job_id=f"grid-{seed}")
        board = client.job("grid-0").message.leaderboard
        wait_until(lambda: leaderboard_is_there(client, board), 60, "the leaderboard")
        populate(client, folder, board)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with resting_services(folder) as client:
        yield client


def test_jobs_are_found_where_nothing_runs(run_command, folder):
    """The first test here: afterwards something runs."""
    assert "grid-0" in run_command("jobs", "--dir", str(folder))
    assert "grid-0: PENDING" in run_command("job", "grid-0", "--dir", str(folder))


def test_everything_about_a_job_is_gathered(client):
    report = client.job("grid-0").history()
    assert (report.name, report.state, report.objective.target) == ("grid-0", "PENDING", 475.0)
    assert report.labels["note"] == "<b>mine</b>"
    assert dict(request_rows(report.job.spec))["learning_rate"] == "0.001 to 0.01, in the logarithm"
    assert [agent.algorithm for agent in report.agents] == ["ppo"] * 3
    assert {agent.start for agent in report.agents} == {"FRESH"}
    assert len(report.candidates) == 2
    assert report.candidates[0].evaluation.mean == 202.0
    progress = [each for each in report.evaluations if each.purpose == "PROGRESS"]
    assert len(progress) == EVALUATIONS - 1
    assert report.events[0].kind == "JOB_CREATED"
    assert ("computed by", "torch") in environment_rows(report)


def test_of_a_long_history_an_even_choice_is_gathered_with_every_best(client):
    report = client.job("grid-0").history(max_evaluations=100)
    assert len(report.evaluations) <= 103
    assert {agent.name for agent in report.agents} <= {each.agent for each in report.evaluations}
    assert "an even choice" in " ".join(report.omissions)


def test_one_agent_s_evaluations(client):
    report = client.job("grid-1").history()
    assert (report.agents, report.evaluations) == ((), ())
    board = client.job("grid-0").message.leaderboard
    agents = client.agents(board)
    assert len(list(client.evaluations(board, agent=agents[1].name))) == 1


def test_reading_leaves_no_address_behind_and_keeps_others_out(client, folder):
    assert not (folder / FILE_NAME).exists()
    with pytest.raises(PreconditionFailed, match="in use"), resting_services(folder):
        pass


@pytest.fixture
def run_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["podracer", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        assert (end.value.code or 0) == code, captured.err
        return captured.out + captured.err

    return run


@pytest.fixture
def server(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command finds the services that serve the other tests."""
    token = tmp_path / "token"
    token.write_text(client.connection.token())
    token.chmod(0o600)
    monkeypatch.setenv("PODRACER_ORCHESTRATOR", client.connection.orchestrator)
    monkeypatch.setenv("PODRACER_LEADERBOARD", client.connection.leaderboard)
    monkeypatch.setenv("PODRACER_TOKEN_FILE", str(token))


@pytest.mark.usefixtures("server")
def test_the_command_writes_a_page_and_a_table(run_command, tmp_path):
    shown = run_command("report", "grid-0", "--figures", "pictures")
    assert "grid-0: pending" in shown
    assert "no video: there is no checkpoint" in shown
    assert "wrote grid-0-report.html" in shown
    page = (tmp_path / "grid-0-report.html").read_text()
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "<b>mine" not in page
    assert "no video: there is no checkpoint" in page
    assert (tmp_path / "pictures" / "returns-by-steps.svg").exists()
    assert (tmp_path / "pictures" / "lineage.png").exists()


@pytest.mark.usefixtures("server")
def test_the_command_compares_an_experiment(run_command, tmp_path):
    shown = run_command("report", "grid", "comparison.html", "--json")
    values = json.loads(shown)
    assert (values["experiment"], values["jobs"]) == ("grid", ["grid-0", "grid-1"])
    assert "grid-1" in (tmp_path / "comparison.html").read_text()


@pytest.mark.usefixtures("server")
def test_an_unknown_name(run_command, tmp_path):
    for name in ("unknown", "No Name"):
        assert f"neither a job nor an experiment called {name}" in run_command(
            "report", name, "x.html", code=2
        )
    assert "no experiment grid-0" in run_command(
        "report", "grid-0", "x.html", "--experiment", code=2
    )
    assert "cannot write missing/x.html" in run_command(
        "report", "grid-0", "missing/x.html", code=2
    )
    assert not (tmp_path / "x.html").exists()
