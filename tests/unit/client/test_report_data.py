"""What figures and tables are made from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.jobs import Agent, Event, Thinning, finite_evaluation
from podracer_client.report import (
    ancestors,
    best_agent,
    best_so_far,
    experiment_of,
    experiment_text,
    family_order,
    job_steps,
    living_lines,
    most_telling,
    pod_histories,
    request_rows,
    searched_names,
    spread,
    throughput,
)
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.sections import Objective
from podracer_platform.jobs import Continuous, Founder, JobSpec, Retrain
from support.reports import empty_report, made_up_report

ORIGIN = Timestamp(seconds=1000, nanos=500_000_000)


def agent(name: str, *parents: str, state: str = "RETIRED", score: float | None = None) -> Agent:
    return Agent(name, "ppo", state, "FRESH", parents, "", 0.0, 0, 100, 1.0, 1, score, {})


def event(kind: str, pod: str, time_s: float, fence: str = "") -> Event:
    return Event(1, kind, "", "pods", pod, time_s, {"fence": fence} if fence else {})


def test_thinning_keeps_an_even_choice_in_order():
    thinning: Thinning[int] = Thinning(10)
    for number in range(10):
        thinning.add(number)
    assert thinning.kept == list(range(10))
    for number in range(10, 1000):
        thinning.add(number)
    assert thinning.count == 1000
    assert 5 <= len(thinning.kept) <= 10
    assert (
        len(
            {
                after - before
                for before, after in zip(thinning.kept, thinning.kept[1:], strict=False)
            }
        )
        == 1
    )


def test_families_stay_together_and_no_agent_is_lost():
    people = [
        agent("a"),
        agent("b"),
        agent("a1", "a"),
        agent("b1", "b"),
        agent("a2", "a1"),
        agent("ab", "a", "b"),
    ]
    assert [each.name for each in family_order(people)] == ["a", "a1", "a2", "ab", "b", "b1"]
    circle = [agent("x", "y"), agent("y", "x"), agent("z", "unknown")]
    assert sorted(each.name for each in family_order(circle)) == ["x", "y", "z"]


def test_a_line_lives_as_long_as_one_descendant_does():
    people = [agent("a"), agent("a1", "a", state="WAITING"), agent("b"), agent("b1", "b")]
    assert living_lines(people) == {"a", "a1"}
    assert ancestors(people, ["b1", "unknown"]) == {"b", "b1"}


def test_of_many_agents_the_board_and_its_ancestors_are_shown_first():
    report = made_up_report(60, 3)
    chosen = {each.name for each in most_telling(report, 30)}
    assert len(chosen) == 30
    assert ancestors(report.agents, [candidate.agent for candidate in report.candidates]) <= chosen
    assert most_telling(report, 60) == list(report.agents)
    assert best_agent(report) == report.candidates[0].agent
    assert best_agent(empty_report()) == ""


def test_pods_from_events():
    events = [
        event("LEASE_GRANTED", "p0", 1.0, "1"),
        event("LEASE_GRANTED", "p1", 2.0, "2"),
        event("POD_RESTARTED", "p1", 3.0),
        event("LEASE_EXPIRED", "p1", 3.5, "2"),
        event("ROUND_COMPLETED", "p0", 4.0, "1"),
        event("LEASE_GRANTED", "p0", 5.0, "3"),
        event("LEASE_GRANTED", "p0", 6.0, "4"),
        event("JOB_SUCCEEDED", "", 9.0),
    ]
    first, second = pod_histories(
        [each if each.subject else replace(each, about="") for each in events], 10.0
    )
    assert [(span.start_s, span.end_s, span.end) for span in first.spans] == [
        (1.0, 4.0, "ROUND_COMPLETED"),
        (5.0, 6.0, ""),
        (6.0, 10.0, ""),
    ]
    assert [span.was_lost for span in second.spans] == [True]
    assert [incident.kind for incident in second.incidents] == ["POD_RESTARTED"]
    assert (second.first_s, second.last_s) == (2.0, 3.5)
    assert pod_histories([], 10.0) == ()


def test_work_that_was_handed_on_belongs_to_its_new_pod():
    def of(kind: str, pod: str, time_s: float, fence: str = "") -> Event:
        details = {"work": "w", **({"fence": fence} if fence else {})}
        return Event(1, kind, "", "pods" if pod else "", pod, time_s, details)

    events = [
        of("LEASE_GRANTED", "first", 0.0, "1"),
        of("LEASE_GRANTED", "second", 5.0, "2"),
        of("LEASE_EXPIRED", "first", 6.0, "1"),
        of("WORK_FAILED", "", 9.0),
    ]
    first, second = pod_histories(events, 10.0)
    assert [(span.start_s, span.end_s, span.end) for span in first.spans] == [
        (0.0, 6.0, "LEASE_EXPIRED")
    ]
    assert [(span.start_s, span.end_s, span.end) for span in second.spans] == [
        (5.0, 9.0, "WORK_FAILED")
    ]


def test_the_throughput_adds_up_to_the_steps():
    report = made_up_report()
    edges, rates = throughput(report)
    width = edges[1] - edges[0]
    assert sum(rate * width for rate in rates) == pytest.approx(report.env_steps, rel=1e-6)
    assert job_steps(report)[-1][1] == report.env_steps
    assert throughput(empty_report()) == ([], [])


def test_the_best_so_far_only_grows_and_only_by_judged_evaluations():
    curve = best_so_far(made_up_report())
    assert [score for *_, score in curve] == sorted({score for *_, score in curve})
    assert curve[-1][2] == made_up_report().candidates[0].score


def test_what_is_not_finite_is_left_out():
    message = agent_pb2.Evaluation(agent="projects/p/jobs/j/agents/a0001", mean=math.nan)
    assert finite_evaluation(message, ORIGIN) is None
    message.mean, message.lower_bound, message.upper_bound = 1.0, -math.inf, math.inf
    record = finite_evaluation(message, ORIGIN)
    assert record is not None
    assert (record.agent, record.lower, record.upper, record.time_s) == ("a0001", None, None, None)


def test_times_count_from_the_job_s_creation_and_names_are_short():
    message = job_pb2.Event(
        kind="TARGET_REACHED",
        message="projects/default/jobs/x/agents/a0003 has reached it, on projects/default/pods/x-0",
        subject="projects/default/jobs/x/agents/a0003",
        time=Timestamp(seconds=1002),
    )
    record = Event.of(message, ORIGIN)
    assert (record.about, record.subject, record.time_s) == ("agents", "a0003", 1.5)
    assert record.message == "a0003 has reached it, on x-0"


def test_what_was_asked_is_said_in_the_words_of_a_job_file():
    message = job_pb2.JobSpec(
        display_name="x",
        environment=environment_pb2.EnvironmentSpec(id="Pendulum-v1"),
        objective=evolution_pb2.Objective(target_return=-200.0, max_duration=Duration(seconds=600)),
        search=evolution_pb2.Search(
            algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo", share=2.0)],
            space=[
                evolution_pb2.Dimension(
                    hyperparameter="learning_rate",
                    log_uniform=evolution_pb2.Interval(low=1e-4, high=1e-2),
                )
            ],
        ),
        evaluation=job_pb2.EvaluationSpec(episodes=64, evaluator="success_rate"),
    )
    rows = dict(request_rows(message))
    assert rows["environment"] == "Pendulum-v1"
    assert rows["evaluation"] == "64 episodes by success_rate"
    assert (
        rows["objective"]
        == "return -200 by the lower bound of the 95 % interval, at most 10 min 00 s"
    )
    assert rows["algorithms"] == "ppo (share 2)"
    assert rows["learning_rate"] == "0.0001 to 0.01, in the logarithm"
    assert searched_names(message) == {"learning_rate": True}


def test_what_is_to_happen_besides_training_is_said_too():
    spec = JobSpec(
        name="x",
        environment=EnvironmentSpec("StockTrading-v0", kwargs={"evaluation_split": "validation"}),
        objective=Objective(max_duration=600.0),
        warm_start=(
            Founder(
                "projects/default/jobs/old/agents/a0003",
                "agents/a0003/checkpoints/1-1/",
                "0" * 64,
                "ppo",
            ),
        ),
        retrain=Retrain({"train_end": "2018-12-28"}, env_steps=500_000, scratch=True),
    )
    rows = dict(request_rows(spec.to_message()))
    assert rows["arguments"] == "evaluation_split: validation"
    assert rows["warm start"] == "old/a0003"
    assert (
        rows["retrain"]
        == "the best from new weights, 500,000 environment steps, train_end: 2018-12-28"
    )
    assert "continuous" not in rows
    watching = Continuous(interval=3600.0, contest={"evaluation_split": "test"}, margin=0.1)
    rows = dict(
        request_rows(
            (replace(spec, warm_start=(), retrain=Retrain(), continuous=watching)).to_message()
        )
    )
    assert "warm start" not in rows
    assert rows["retrain"] == "the best from its weights"
    assert rows["continuous"] == (
        "a generation every 1 h 00 min, the champion is called champion, contest in "
        "evaluation_split: test, margin 0.1"
    )


def test_jobs_are_grouped_over_seeds_and_ordered_by_size():
    jobs = [
        empty_report(
            name=f"projects/default/jobs/j{rate}-{seed}",
            labels={"experiment": "e", "matrix.search.space.rate": rate, "matrix.seed": seed},
            **({"time_to_target": float(seed)} if rate == "9" else {}),
            env_steps=1000 * int(seed),
        )
        for seed in ("10", "2", "1")
        for rate in ("10", "9")
    ]
    experiment = experiment_of("e", jobs)
    assert experiment.axes == ("search.space.rate", "seed")
    assert [job.name for job in experiment.jobs] == [
        "j9-1",
        "j9-2",
        "j9-10",
        "j10-1",
        "j10-2",
        "j10-10",
    ]
    assert [(group.name, len(group.jobs), group.reached) for group in experiment.groups] == [
        ("rate 9", 3, 3),
        ("rate 10", 3, 0),
    ]
    text = experiment_text(experiment)
    assert "2.0 (1.0 to 10.0)" in text
    assert "2,000 (1,000 to 10,000)" in text
    assert "0 of 3" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "–"),
        ([None], "–"),
        ([3.0, None], "3"),
        ([1.0, 3.0, 8.0], "3 (1 to 8)"),
        ([1.0, 2.0], "1.5 (1 to 2)"),
    ],
)
def test_a_median_with_its_range(values, expected):
    assert spread(values, lambda value: f"{value:g}") == expected
