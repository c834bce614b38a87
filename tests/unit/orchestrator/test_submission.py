"""What a client's request becomes."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import environment_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.catalogue import extensions
from podracer_core.errors import InvalidInput
from podracer_orchestrator.jobs import MAX_AUTOMATIC_MEMBERS, JobPlan, plan_of, submission
from podracer_orchestrator.tables import JobRow
from support.errors import raises


def spec(**changes) -> job_pb2.JobSpec:
    parts = {
        "display_name": "pendulum",
        "environment": environment_pb2.EnvironmentSpec(id="Pendulum-v1"),
        "objective": evolution_pb2.Objective(target_return=-200.0),
    }
    return job_pb2.JobSpec(**{**parts, **changes})


def request_of(**changes) -> service_pb2.CreateJobRequest:
    return service_pb2.CreateJobRequest(spec=spec(**changes))


def plan(**changes) -> JobPlan:
    stored = submission.checked(spec(**changes)).SerializeToString()
    return plan_of(JobRow(project="default", spec=stored))


def test_a_name_is_made_of_the_display_name_and_a_random_ending():
    new = submission.new_job(service_pb2.CreateJobRequest(spec=spec()))
    assert re.fullmatch(r"pendulum-[a-z2-9]{6}", new.job_id)
    assert new.description.action_space.box.low == [-2.0]
    long = submission.new_job(service_pb2.CreateJobRequest(spec=spec(display_name="x" * 63)))
    assert len(long.job_id) == 63


def test_every_bad_field_is_told_at_once():
    bad = spec(display_name="Bad Name", evaluation=job_pb2.EvaluationSpec(episodes=-1), weight=-2.0)
    with pytest.raises(InvalidInput) as caught:
        submission.new_job(service_pb2.CreateJobRequest(spec=bad))
    assert len(caught.value.violations) >= 3


def test_a_profile_has_to_be_one_of_those_that_the_operator_lists():
    request = request_of(pod=job_pb2.PodShape(profile="a100"))
    assert submission.new_job(request, ["a100", "spot"]).spec.pod.profile == "a100"
    assert plan(pod=request.spec.pod).kind.name == "fused-on-a100"
    with raises(InvalidInput, field="pod.profile", match="pod profile 'a100'"):
        submission.new_job(request, ["t4", "spot"])
    with raises(InvalidInput, field="pod.profile", match="pod profile 'a100'"):
        submission.new_job(request)


@pytest.mark.parametrize(
    ("environment", "pod", "has_gpus", "horizon"),
    [
        ("Ant-v5", {}, True, 16),
        ("Ant-v5", {"resources": job_pb2.Resources(gpu=1)}, False, 16),
        ("Ant-v5", {}, False, None),
        ("Ant-v5", {"layout": job_pb2.POD_LAYOUT_SPLIT}, True, None),  # its workers may have no GPU
        ("Swimmer-v5", {}, True, None),  # MuJoCo Warp does not step it
        ("CartPole-v1", {}, True, 32),
    ],
)
def test_hyperparameters_are_those_of_the_device_that_will_train(
    environment, pod, has_gpus, horizon
):
    request = request_of(
        environment=environment_pb2.EnvironmentSpec(id=environment), pod=job_pb2.PodShape(**pod)
    )
    new = submission.new_job(request, has_gpus=has_gpus)
    filled = [
        each.fixed.integer
        for each in new.spec.search.space
        if (each.algorithm, each.hyperparameter) == ("ppo", "horizon")
    ]
    assert filled == ([] if horizon is None else [horizon])
    space = [evolution_pb2.Dimension(hyperparameter="horizon", fixed={"integer": 8})]
    given = submission.new_job(
        request_of(search=evolution_pb2.Search(space=space)), has_gpus=has_gpus
    )
    assert [
        each.fixed.integer for each in given.spec.search.space if each.hyperparameter == "horizon"
    ] == [8]


def test_defaults_are_filled_in():
    found = plan()
    assert (found.population, found.episodes, found.min_pods, found.max_pods) == (8, 32, 1, 1)
    assert found.round.time_s == 15.0
    assert found.kind.is_fused
    assert not found.target_is_mean


def test_a_pods_share_of_the_population():
    assert plan().places(1) == 8
    assert plan().places(3) == 3
    assert (
        plan(evolution=evolution_pb2.Evolution(population=100)).places(1) == MAX_AUTOMATIC_MEMBERS
    )
    assert plan(pod=job_pb2.PodShape(members=5)).places(3) == 5


def test_pods_of_several_learners_are_counted_in_teams():
    found = plan(pod=job_pb2.PodShape(min_count=1, max_count=3, learners=4))
    assert (found.min_pods, found.max_teams, found.max_pods) == (1, 3, 12)
    assert [found.teams(pods) for pods in (0, 1, 4, 5, 12)] == [1, 1, 1, 2, 3]
    alone = plan(pod=job_pb2.PodShape(max_count=3))
    assert (alone.learners, alone.max_pods, [alone.teams(pods) for pods in (1, 2, 3)]) == (
        1,
        3,
        [1, 2, 3],
    )


def test_layout_is_fused_for_built_in_environments_unless_the_job_says_otherwise():
    assert not plan(pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_SPLIT)).kind.is_fused
    assert not plan(environment=environment_pb2.EnvironmentSpec(entry_point="a.b:C")).kind.is_fused


@pytest.mark.parametrize(
    ("kind", "group"), [("generator", "podracer.generators"), ("updater", "podracer.updaters")]
)
def test_an_extension_that_is_not_installed_beside_us_is_refused(kind, group, monkeypatch):
    installed = EntryPoints([EntryPoint("mine", "a:B", group), EntryPoint("other", "a:C", group)])
    monkeypatch.setattr(submission, "entry_points", lambda group: installed.select(group=group))
    submission.new_job(request_of(evolution=evolution_pb2.Evolution(**{kind: "mine"})))
    with raises(InvalidInput, field=f"evolution.{kind}", match="mine, other"):
        submission.new_job(request_of(evolution=evolution_pb2.Evolution(**{kind: "mien"})))


def test_an_unknown_fusion_is_refused_with_the_installed_ones(monkeypatch):
    installed = EntryPoints([EntryPoint("mine", "not.there:Mine", "podracer.fusions")])
    monkeypatch.setattr(extensions, "entry_points", lambda group: installed.select(group=group))
    for name in ("", "mean", "weighted", "outer", "mine"):
        submission.new_job(
            request_of(pod=job_pb2.PodShape(learners=2, fusion=job_pb2.Fusion(name=name)))
        )
    unknown = job_pb2.PodShape(learners=2, fusion=job_pb2.Fusion(name="maen"))
    with raises(InvalidInput, field="pod.fusion.name"):
        submission.new_job(request_of(pod=unknown))


def test_an_unknown_evaluator_is_refused_with_the_installed_ones(monkeypatch):
    installed = EntryPoints([EntryPoint("mine", "not.there:Mine", "podracer.evaluators")])
    monkeypatch.setattr(extensions, "entry_points", lambda group: installed.select(group=group))
    for name in ("", "greedy_episodes", "mine"):
        submission.new_job(request_of(evaluation=job_pb2.EvaluationSpec(evaluator=name)))
    known = "greedy_episodes, mine"
    with raises(InvalidInput, field="evaluation.evaluator", match=known):
        submission.new_job(request_of(evaluation=job_pb2.EvaluationSpec(evaluator="greedy")))


def test_where_no_leaderboard_is_installed_its_extensions_are_taken_on_trust(monkeypatch):
    monkeypatch.setattr(submission, "entry_points", lambda group: EntryPoints())
    submission.new_job(
        request_of(evolution=evolution_pb2.Evolution(generator="theirs", updater="theirs"))
    )


def test_a_budget_of_less_than_a_round_is_warned_of():
    objective = evolution_pb2.Objective()
    objective.max_duration.FromSeconds(5)
    assert submission.new_job(request_of(objective=objective)).warnings == (
        "max_duration (5 s) is less than one round takes (15 s)",
    )
    objective.max_duration.FromSeconds(15)
    assert submission.new_job(request_of(objective=objective)).warnings == ()


def test_a_change_is_checked_like_a_new_job():
    spec = submission.new_job(request_of()).spec
    with pytest.raises(InvalidInput, match=r"objective\.max_cost"):
        new = job_pb2.JobSpec(
            objective=evolution_pb2.Objective(max_cost=duration_pb2.Duration(seconds=-1))
        )
        submission.changed(spec, new, ["objective.max_cost"])
