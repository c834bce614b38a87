"""Work goes to pods that can do it; a job says once why another pod gets none."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2

from podracer.common.v1 import environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_orchestrator.dispatch import capabilities
from support.installed import install

__all__ = ["install"]

GIB = 1 << 30


async def passed_over(site, job):
    return [event.message for event in await site.events(job, capabilities.PASSED_OVER)]


def proposal_requests(site):
    return site.board.heard(leaderboard_pb2.ProposeCohortRequest)


async def assert_only(site, job, why, **able):
    """A plain pod gets nothing, and `why` is said once; a pod with `able` gets work."""
    plain = site.learner("projects/default/pods/plain", allows_user_code=False)
    for _ in range(2):
        assert await plain.ask(wait_s=0.05) is None
    assert await site.learner("projects/default/pods/able", **able).ask() is not None
    assert await passed_over(site, job) == [f"projects/default/pods/plain gets no work: {why}"]


async def test_user_code_goes_where_it_may_run(site):
    environment = environment_pb2.EnvironmentSpec(
        entry_point="mine:Env", kwargs=struct_pb2.Struct()
    )
    job = await site.create(
        environment=environment, pod=job_pb2.PodShape(layout=job_pb2.POD_LAYOUT_FUSED)
    )
    ways = "use the split layout, or allow it (PODRACER_ALLOW_USER_CODE, on Linux with Landlock)"
    why = f"it does not run user code; {ways}"
    await assert_only(site, job, why, allows_user_code=True)


async def test_an_environment_of_a_package_goes_where_that_is_installed(site, install):
    install("my-package", {"Mine-v0": "my_package:Mine"}, "podracer.environments")
    job = await site.create(environment=environment_pb2.EnvironmentSpec(id="Mine-v0"))
    await assert_only(
        site, job, "the environment Mine-v0 is not installed there", environments=["Mine-v0"]
    )


async def test_an_evaluator_of_a_package_goes_where_that_is_installed(site, install):
    install("my-package", {"mine": "my_package:Mine"}, "podracer.evaluators")
    job = await site.create(evaluation=job_pb2.EvaluationSpec(evaluator="mine"))
    await assert_only(site, job, "the evaluator mine is not installed there", evaluators=["mine"])


async def test_an_algorithm_goes_where_it_is_installed(site):
    search = evolution_pb2.Search(algorithms=[evolution_pb2.AlgorithmShare(algorithm="ppo")])
    job = await site.create(search=search)
    without = site.learner("projects/default/pods/without", algorithms=["mine"])
    assert await without.ask(wait_s=0.05) is None
    assert await passed_over(site, job) == [
        "projects/default/pods/without gets no work: none of the job's algorithms is installed "
        "there: ppo"
    ]
    assert (await site.learner(algorithms=["mine", "ppo"]).ask()).HasField("train")


async def test_a_pod_that_has_some_of_the_algorithms_is_proposed_those_and_takes_no_other_work(
    site,
):
    shares = [evolution_pb2.AlgorithmShare(algorithm=name) for name in ("ppo", "dqn")]
    await site.create(
        search=evolution_pb2.Search(algorithms=shares), pod=job_pb2.PodShape(max_count=2)
    )
    both = site.learner("projects/default/pods/both")
    assert (await both.ask()).train.cohort.algorithm == "ppo"
    await both.release()
    some = site.learner("projects/default/pods/some", algorithms=["dqn"])
    assert (await some.ask()).train.cohort.algorithm == "dqn"
    assert [list(request.algorithms) for request in proposal_requests(site)] == [[], ["dqn"]]
    assert (await both.ask()).train.cohort.algorithm == "ppo", "the work that was handed back"


@pytest.mark.parametrize(
    ("resources", "why", "able"),
    [
        (job_pb2.Resources(gpu=2), "it has 0 GPUs, the job asks for 2", {"gpus": ["a", "b"]}),
        (
            job_pb2.Resources(memory_bytes=8 * GIB),
            "it has 4.0 GiB of memory, the job asks for 8.0",
            {"memory_bytes": 8 * GIB},
        ),
    ],
)
async def test_devices_and_memory_that_a_job_asks_for(site, resources, why, able):
    job = await site.create(pod=job_pb2.PodShape(resources=resources))
    plain = site.learner("projects/default/pods/plain", memory_bytes=4 * GIB)
    assert await plain.ask(wait_s=0.05) is None
    assert await passed_over(site, job) == [f"projects/default/pods/plain gets no work: {why}"]
    assert await site.learner("projects/default/pods/able", **able).ask() is not None


async def test_the_leaderboard_is_told_what_is_left_of_the_budget_and_what_is_used(site):
    objective = evolution_pb2.Objective(max_env_steps=5_000)
    objective.max_cost.FromSeconds(40)
    await site.create(objective=objective)
    await site.learner().ask()
    (request,) = proposal_requests(site)
    assert (request.remaining_env_steps, request.remaining_cost.seconds) == (5_000, 40)
    assert request.HasField("budget_used")
    assert request.budget_used == 0.0
