"""What the displays print of the same job."""

from __future__ import annotations

import io
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.command import choose_display
from podracer_client.display import (
    JobSummary,
    JsonDisplay,
    PlainDisplay,
    TableDisplay,
    agent_table,
    columns,
    count_text,
    duration_text,
    evaluation_text,
    next_steps,
    path_text,
    present,
    program_words,
    progress_line,
    return_text,
    show_update,
)
from podracer_client.jobs import Agent, History, JobUpdate, Objective, Pod
from podracer_client.report import population_table, request_rows

KEYS = [
    "event", "state", "outcome", "best_return", "best_score", "broken_episodes", "cut_episodes",
    "env_steps", "train_seconds", "cost_seconds", "evaluation_seconds",
    "seconds_to_target", "env_steps_per_second", "agents", "checkpoint", "warnings",
]  # fmt: skip


def agent(number: int, score: float | None) -> leaderboard_service_pb2.Agent:
    made = leaderboard_service_pb2.Agent(
        name=f"projects/default/jobs/j/agents/a{number:04}", rung=1
    )
    made.spec.algorithm = "ppo"
    made.state = leaderboard_service_pb2.AGENT_STATE_WAITING
    if score is not None:
        made.best_evaluation.mean = score + 10
        made.best_evaluation.lower_bound = made.best_score = score
    return made


def with_agents(job: job_pb2.Job, agents: list[leaderboard_service_pb2.Agent]) -> History:
    wanted = Objective.of(job.spec.objective)
    return History(job, agents=[Agent.of(each, wanted, job.create_time) for each in agents])


def test_the_table_shows_no_control_characters_of_an_event(running_job, pods):
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    pods[0].message = "lost\x1b[2J"
    with TableDisplay(io.StringIO(), console) as display:
        event = job_pb2.Event(message="\x1b]0;t\x07raised")
        show_update(display, JobUpdate(History(running_job, list(map(Pod.of, pods))), (event,)))
        console.print(display.render())
    assert "\\u001b]0;t\\u0007raised" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "lost\\u001b[2J" in console.file.getvalue()  # type: ignore[attr-defined]


def test_numbers():
    assert [count_text(value) for value in (0, 999_999, 1_234_567, 5e9)] == [
        "0",
        "999,999",
        "1.23 M",
        "5.00 G",
    ]
    assert [duration_text(value) for value in (None, 4.21, 185, 7620)] == [
        "–",
        "4.2 s",
        "3 min 05 s",
        "2 h 07 min",
    ]
    assert [return_text(value) for value in (None, -182.44, 12139.4, -0.124)] == [
        "–",
        "-182.4",
        "12,139",
        "-0.12",
    ]
    one = agent_pb2.Evaluation(mean=0.45, lower_bound=-0.3, upper_bound=1.2, returns=[12.0])
    assert evaluation_text(one) == "0.45 (1 episode)"
    one.deterministic = True
    assert evaluation_text(one) == "0.45 (95 % interval -0.30 to 1.20, 1 episode)"


def test_a_snapshot_takes_the_live_steps_and_leaves_out_stopped_pods(running_job, pods):
    snapshot = History(running_job, tuple(map(Pod.of, pods)))
    assert (snapshot.env_steps, snapshot.live_env_steps) == (1_200_000, 1_234_567)
    assert snapshot.state == "RUNNING"
    assert snapshot.best is not None
    assert (snapshot.best.mean, snapshot.best_score, snapshot.objective.target) == (
        -182.4,
        -201.3,
        -200.0,
    )
    assert [pod.name for pod in present(snapshot.pods)] == ["p1"]
    assert snapshot.pods[0].agents[0] == "a0001"


def test_the_score_is_the_statistic_of_the_objective(running_job):
    running_job.spec.objective.statistic, running_job.progress.best_score = (
        evolution_pb2.TARGET_STATISTIC_MEAN,
        -182.4,
    )
    snapshot = History(running_job)
    assert (snapshot.best_score, snapshot.objective.statistic) == (-182.4, "mean")


def test_a_score_that_is_no_return_is_named(finished_job):
    finished_job.spec.environment.id = "StockTrading-v0"
    assert "best -201.3 (lower" in progress_line(History(finished_job))
    finished_job.spec.environment.kwargs.update({"score": "sharpe_ratio"})
    finished_job.progress.best.mean, finished_job.progress.best_score = 0.1, -0.124
    assert "best Sharpe -0.12 (lower" in progress_line(History(finished_job))
    assert any(
        line.startswith("best Sharpe  -0.12 (lower bound), mean 0.10 (95 %")
        for line in JobSummary(finished_job, "").lines()
    )
    assert dict(request_rows(finished_job.spec))["objective"].startswith(
        "Sharpe -200 by the lower bound"
    )


def test_a_job_without_target_and_evaluation(running_job):
    running_job.spec.objective.ClearField("target_return")
    running_job.progress.Clear()
    snapshot = History(running_job)
    assert (snapshot.best, snapshot.objective.target, snapshot.eta_s) == (None, None, None)
    assert "best –" in progress_line(snapshot)


def test_agents_are_sorted_by_score_then_newest_first():
    found = with_agents(
        job_pb2.Job(), [agent(1, -300), agent(2, None), agent(3, -100), agent(4, None)]
    )
    assert list(agent_table(found).columns[0].cells) == ["a0003", "a0001", "a0004", "a0002"]


def test_an_agent_that_cannot_be_first_stands_behind_all_others_in_every_table():
    agents = [agent(1, -300), agent(2, -100), agent(3, None)]
    agents[1].exclusion = "its environment broke"
    found = with_agents(job_pb2.Job(), agents)
    table = agent_table(found)
    assert list(table.columns[0].cells) == ["a0001", "a0003", "a0002"]
    assert "breaks too often" in str(list(table.columns[2].cells)[-1])

    training = replace(found, agents=[replace(each, state="TRAINING") for each in found.agents])
    page = population_table(training, {})
    assert (
        page.index("a0001")
        < page.index("a0003")
        < page.index("a0002")
        < page.index("cannot be first")
    )


def test_the_json_display_ends_with_job_finished(finished_job, pods):
    out, errors = io.StringIO(), io.StringIO()
    display = JsonDisplay(out, errors, clock=lambda: 0.0)
    display.show(History(finished_job, tuple(map(Pod.of, pods))))
    display.event(job_pb2.Event(position=1, kind="LEASE_EXPIRED", message="lost", subject="p1"))
    display.note("the leaderboard ended")
    display.finish(JobSummary(finished_job, "runs/objects/x"), ["podracer evaluate runs/objects/x"])
    assert errors.getvalue() == ""
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["progress", "job_event", "note", "job_finished"]
    assert list(lines[-1]) == KEYS
    assert lines[-1] == {
        "event": "job_finished",
        "state": "SUCCEEDED",
        "outcome": "TARGET_REACHED",
        "best_return": -182.4,
        "best_score": -201.3,
        "broken_episodes": 0,
        "cut_episodes": 0,
        "env_steps": 1_200_000,
        "train_seconds": 30.0,
        "cost_seconds": 40.0,
        "evaluation_seconds": 10.0,
        "seconds_to_target": 28.5,
        "env_steps_per_second": 40_000.0,
        "agents": 8,
        "checkpoint": "runs/objects/x",
        "warnings": [],
    }


def test_a_job_that_never_began_has_nulls(failed_job):
    values = JobSummary(failed_job, "").to_json()
    assert values["state"] == "FAILED"
    assert values["best_return"] is values["seconds_to_target"] is values["checkpoint"] is None
    assert values["env_steps_per_second"] == 0.0


def test_progress_lines_come_at_most_once_an_interval_but_always_for_a_new_state(running_job):
    times = iter((0.0, 0.5, 1.9, 2.0, 2.1))
    errors = io.StringIO()
    display = PlainDisplay(io.StringIO(), errors, clock=lambda: next(times))
    for _ in range(4):
        display.show(History(running_job))
    running_job.state = job_pb2.JOB_STATE_SUSPENDED
    display.show(History(running_job))
    lines = errors.getvalue().splitlines()
    assert len(lines) == 3
    assert "suspended" in lines[-1]


def test_the_plain_display_keeps_stdout_for_the_result(finished_job):
    out, errors = io.StringIO(), io.StringIO()
    display = PlainDisplay(out, errors)
    display.show(History(finished_job))
    assert out.getvalue() == ""
    display.finish(JobSummary(finished_job, "runs/objects/x"), ["podracer evaluate runs/objects/x"])
    text = out.getvalue()
    assert "SUCCEEDED, target reached after 28.5 s of training" in text
    assert (
        "best return  -201.3 (lower bound), mean -182.4 (95 % interval -201.3 to -163.5, 2 "
        "episodes), agent a0002" in text
    )
    assert "best policy  runs/objects/x" in text
    assert "  podracer evaluate runs/objects/x" in text


def test_a_failed_job_shows_the_users_own_traceback(failed_job):
    lines = JobSummary(failed_job, "").lines()
    assert "problem      USER_CODE_FAILED: it raised" in lines
    assert "    ValueError" in lines
    errors = io.StringIO()
    JsonDisplay(io.StringIO(), errors).finish(JobSummary(failed_job, ""), [])
    assert "    ValueError" in errors.getvalue().splitlines()


def test_the_table_shows_pods_agents_and_figures(running_job, pods):
    console = Console(file=io.StringIO(), width=140, markup=False)
    display = TableDisplay(io.StringIO(), console, clock=lambda: 5.0)
    found = with_agents(running_job, [agent(number, -100.0 - number) for number in range(1, 16)])
    display.show(replace(found, pods=tuple(map(Pod.of, pods))))
    display.note("[a note] with brackets")
    console.print(display.render())
    text = console.file.getvalue()
    for part in (
        "pendulum-x7", "RUNNING", "best -201.3 (lower bound; mean -182.4, target -200.0)",
        "1.23 M steps", "45,679 steps/s", "elapsed 30.0 s", "ETA 9 min 30 s", "a0001", "ppo",
        "split", "+2", "started again 2×", "[learner]", "and 3 more", "[a note]",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert "a0015" not in text


def test_what_was_done_to_the_data_is_shown_once_in_every_display(running_job):
    running_job.environment_description.preparation = "prices.csv: [2] gaps filled"
    inspected = job_pb2.Event(
        position=2, kind="ENVIRONMENT_INSPECTED", message="the environment runs on torch"
    )
    other = job_pb2.Event(position=3, kind="POD_STARTED", message="a pod")
    out, errors, screen = io.StringIO(), io.StringIO(), io.StringIO()
    table = TableDisplay(
        io.StringIO(), Console(file=screen, width=60, markup=False, highlight=False)
    )
    for display in (JsonDisplay(out, io.StringIO()), PlainDisplay(io.StringIO(), errors), table):
        show_update(display, JobUpdate(History(running_job), (inspected,)))
        show_update(display, JobUpdate(History(running_job), (other,)))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    prepared = [line for line in lines if line["event"] == "prepared"]
    assert prepared == [{"event": "prepared", "message": "prices.csv: [2] gaps filled"}]
    assert errors.getvalue().count("  prepared: prices.csv: [2] gaps filled\n") == 1
    assert screen.getvalue() == "prepared  prices.csv: [2] gaps filled\n"
    running_job.environment_description.Clear()
    show_update(table, JobUpdate(History(running_job), (inspected,)))
    assert screen.getvalue().count("prepared") == 1


def test_a_display_without_a_terminal_is_plain(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(choose_display(plain=False, json=False), PlainDisplay)
    assert isinstance(choose_display(plain=True, json=True), JsonDisplay)


def test_next_steps_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "my tools" / "podracer"
    program.parent.mkdir()
    program.write_text("")
    monkeypatch.setattr(sys, "argv", [str(program)])
    commands = next_steps("runs/a b", ["j", "--dir", "runs"])
    assert [shlex.split(command) for command in commands] == [
        ["my tools/podracer", "evaluate", "runs/a b"],
        ["my tools/podracer", "export", "runs/a b", "--output", "policy.pt2"],
        ["my tools/podracer", "leaderboard", "j", "--dir", "runs"],
    ]
    program_text = "'my tools/podracer'"
    commands = next_steps("", ["j"], again=["run", "j.yaml"])
    assert commands == [f"{program_text} run j.yaml", f"{program_text} leaderboard j"]


def test_the_program_on_the_path_is_called_by_its_name(tmp_path, monkeypatch):
    program = tmp_path / "podracer"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_words([str(program)]) == ["podracer"]
    assert program_words(["/x/podracer_client/__main__.py"])[1:] == ["-m", "podracer_client"]


def test_paths_below_the_working_directory_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path_text(tmp_path / "runs" / "x") == "runs/x"
    assert path_text(Path("/elsewhere/x")) == "/elsewhere/x"


def test_columns_are_aligned():
    text = columns(("name", "n"), [("a", "1"), ("longer", "1,000")], right=("n",))
    assert text.splitlines() == ["name        n", "a           1", "longer  1,000"]
