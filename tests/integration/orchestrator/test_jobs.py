"""Jobs over the wire: creating, changing, suspending, cancelling, deleting, watching."""

from __future__ import annotations

import asyncio
import re

import pytest
from google.protobuf import field_mask_pb2

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS
from podracer_core.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    NotFound,
    PreconditionFailed,
)
from podracer_platform.messages import space_to_message
from support.errors import raises
from support.processes import until

USER_ENVIRONMENT = environment_pb2.EnvironmentSpec(entry_point="my_pkg.envs:MyEnv")


def description(name: str = "CartPole-v1") -> environment_pb2.EnvironmentDescription:
    info = BUILT_IN_ENVIRONMENTS[name]
    return environment_pb2.EnvironmentDescription(
        observation_space=space_to_message(info.observation_space),
        action_space=space_to_message(info.action_space),
        backend="gymnasium",
    )


async def test_a_bad_job_is_refused_with_every_bad_field_and_nothing_is_created(site, make_spec):
    bad = make_spec(display_name="No Label", evolution=evolution_pb2.Evolution(population=-3))
    with pytest.raises(InvalidInput) as caught:
        await site.jobs.CreateJob(spec=bad)
    assert len(caught.value.violations) >= 2
    unknown = make_spec(environment=environment_pb2.EnvironmentSpec(id="CartPole-v11"))
    with pytest.raises(InvalidInput, match="CartPole"):
        await site.jobs.CreateJob(spec=unknown)
    assert not (await site.jobs.ListJobs()).jobs


async def test_create_is_idempotent_by_request_and_refuses_a_taken_name(site, make_spec):
    first, again = [
        (await site.jobs.CreateJob(spec=make_spec(), job_id="one", request_id="r1")).job
        for _ in range(2)
    ]
    assert first.uid == again.uid
    with pytest.raises(AlreadyExists):
        await site.jobs.CreateJob(spec=make_spec(), job_id="one")
    checked = await site.jobs.CreateJob(spec=make_spec(), validate_only=True)
    assert checked.job.name == ""
    assert checked.job.spec.evaluation.episodes == 32
    assert len((await site.jobs.ListJobs()).jobs) == 1


async def test_who_gives_the_name_in_their_file_is_told_the_jobs_own(site, make_spec):
    for _ in range(2):
        job = (await site.jobs.CreateJob(spec=make_spec(display_name="walker"))).job
    with raises(NotFound, match=f"is {job.name.rpartition('/')[2]}"):
        await site.job("projects/default/jobs/walker")
    with pytest.raises(NotFound, match=r"jobs/walk$"):
        await site.job("projects/default/jobs/walk")


async def test_unknown_names_are_not_found_and_malformed_ones_invalid(site):
    with pytest.raises(NotFound, match="projects/p/jobs/none"):
        await site.job("projects/p/jobs/none")
    with pytest.raises(InvalidInput, match="projects/p/jobs/j"):
        await site.job("none")


async def test_jobs_are_listed_newest_first_in_pages(site, make_spec):
    for index in range(5):
        await site.jobs.CreateJob(spec=make_spec(), job_id=f"j{index}")
    await site.jobs.CancelJob(name="projects/default/jobs/j2")
    seen, token = [], ""
    while True:
        page = await site.jobs.ListJobs(page_size=2, page_token=token)
        seen += [job.name.rpartition("/")[2] for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["j4", "j3", "j2", "j1", "j0"]
    assert [
        job.name for job in (await site.jobs.ListJobs(states=[job_pb2.JOB_STATE_CANCELLED])).jobs
    ] == ["projects/default/jobs/j2"]


async def test_a_filter_selects_by_the_row_and_by_the_spec_and_says_where_it_is_wrong(
    site, make_spec
):
    async def listed(text: str, **fields) -> list[str]:
        names, token = [], ""
        while True:
            page = await site.jobs.ListJobs(filter=text, page_size=1, page_token=token, **fields)
            names += [job.name.rpartition("/")[2] for job in page.jobs]
            if not (token := page.next_page_token):
                return names

    for index, team in enumerate(["vision", "night shift", ""]):
        labels = {"team": team, "axis of search": str(index)} if team else {}
        spec = make_spec(display_name=f"name{index}", labels=labels)
        await site.jobs.CreateJob(spec=spec, job_id=f"j{index}")
    await site.jobs.CancelJob(name="projects/default/jobs/j1")
    created = (await site.job("projects/default/jobs/j1")).create_time.ToJsonString()
    assert await listed("") == ["j2", "j1", "j0"]
    assert await listed('environment="CartPole-v1" AND state!=CANCELLED') == ["j2", "j0"]
    assert await listed(f"create_time<={created} AND labels.team!=vision") == ["j1"]
    assert await listed(r'labels."axis of search"=1 AND labels.team="night s\hift"') == ["j1"]
    assert await listed('labels.team=""') == ["j2"]
    assert await listed("display_name=name0", states=[job_pb2.JOB_STATE_CANCELLED]) == []
    fields = "state, display_name, environment, labels.KEY or create_time"
    for text, problem in {
        "stat=RUNNING": f"at character 1: expected {fields}, not 'stat'",
        "state=RUNING": "at character 7: expected one of VALIDATING, PENDING, RUNNING, ",
        "state<RUNNING": "at character 6: expected one of = != for state",
        "state=RUNNING environment=x": "at character 15: expected AND, not 'environment=x'",
        "state=RUNNING AND": "at character 18: expected a field, an operator and a value, as in "
        "state=RUNNING, not ''",
        "create_time>2026-01-31": "at character 13: expected a time such as 2026-01-31T00:00:00Z, "
        "not '2026-01-31'",
        'environment="x': "at character 1: expected a field, an operator and a value, as in "
        "state=RUNNING, not ",
        "labels=x": f"at character 1: expected {fields}, not 'labels'",
        "state=RUNNING" * 100: "at character 1001: expected at most 1,000 characters",
    }.items():
        with raises(InvalidInput, field="filter", match=re.escape(problem)):
            await listed(text)


async def test_a_users_environment_is_inspected_before_any_agent_exists(site):
    job = await site.create(environment=USER_ENVIRONMENT)
    assert job.state == job_pb2.JOB_STATE_VALIDATING
    learner = site.learner()
    lease = await learner.ask()
    assert lease.inspect.environment.entry_point == "my_pkg.envs:MyEnv"
    assert not site.board.calls
    await learner.complete(inspect={"description": description()})
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_PENDING
    found = description()
    # a tenth of its 1,000,000 steps for 32 episodes, as there is no time limit
    found.evaluation_steps = 3125
    cohort = (await learner.ask()).train.cohort
    assert cohort.environment_description == found
    assert cohort.environment.evaluation_steps == 3125
    assert site.board.boards[job.leaderboard].environment_description == found


async def test_a_users_environment_that_cannot_start_fails_its_job_with_the_users_traceback(site):
    job = await site.create(environment=USER_ENVIRONMENT)
    learner = site.learner()
    await learner.ask()
    problem = cohort_pb2.Problem(
        reason="USER_CODE_FAILED", message="it raised", detail="Traceback: my own error"
    )
    await learner.complete(problem=problem)
    failed = await site.job(job.name)
    assert (failed.state, failed.problem) == (job_pb2.JOB_STATE_FAILED, problem)
    (told,) = await site.events(job, "WORK_FAILED")
    assert told.details["traceback"] == "Traceback: my own error"
    assert not site.board.calls


async def test_an_action_space_that_no_algorithm_can_act_in_fails_the_job(site):
    job = await site.create(environment=USER_ENVIRONMENT)
    learner = site.learner()
    await learner.ask()
    found = description()
    found.action_space.Clear()
    found.action_space.dict.SetInParent()
    await learner.complete(inspect={"description": found})
    failed = await site.job(job.name)
    assert failed.state == job_pb2.JOB_STATE_FAILED
    assert "no algorithm can act in Dict()" in failed.problem.message


async def test_a_search_space_that_fits_no_algorithm_that_can_act_fails_the_job(site):
    space = [
        evolution_pb2.Dimension(
            hyperparameter="policy_delay", fixed=agent_pb2.HyperparameterValue(integer=3)
        )
    ]
    job = await site.create(environment=USER_ENVIRONMENT, search=evolution_pb2.Search(space=space))
    learner = site.learner()
    await learner.ask()
    found = description()
    found.action_space.Clear()
    found.action_space.discrete.n = 2
    await learner.complete(inspect={"description": found})
    failed = await site.job(job.name)
    assert failed.state == job_pb2.JOB_STATE_FAILED
    assert "unknown hyperparameter 'policy_delay'" in failed.problem.message


async def test_suspend_and_resume_keep_what_is_committed(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.commit(steps=30)
    suspended = (await site.jobs.UpdateJob(name=job.name, suspend=True)).job
    assert suspended.state == job_pb2.JOB_STATE_SUSPENDED
    await learner.commit(steps=35)  # a pod that stops still commits
    await learner.release(reason="DRAINING")
    assert await learner.ask(wait_s=0.2) is None
    resumed = (await site.jobs.UpdateJob(name=job.name, suspend=False)).job
    assert resumed.state == job_pb2.JOB_STATE_RUNNING
    lease = await learner.ask()
    assert [member.resume.env_steps for member in lease.train.cohort.members] == [35, 35]
    assert (await site.job(job.name)).progress.env_steps == 70


async def test_update_changes_what_may_change_and_refuses_the_rest(site):
    job = await site.create()

    async def update(path, etag="", **parts):
        mask = field_mask_pb2.FieldMask(paths=[path])
        return (
            await site.jobs.UpdateJob(
                name=job.name, update_mask=mask, spec=job_pb2.JobSpec(**parts), etag=etag
            )
        ).job

    changed = await update("pod.max_count", pod=job_pb2.PodShape(max_count=3))
    assert (changed.spec.pod.max_count, changed.spec.pod.min_count) == (3, 1)
    changed = await update("objective.target_return")  # unset: no target any more
    assert not changed.spec.objective.HasField("target_return")
    with pytest.raises(InvalidInput, match="environment"):
        await update("environment.id")
    with pytest.raises(InvalidInput):
        await update("pod.max_count", pod=job_pb2.PodShape(max_count=-1))
    with pytest.raises(Fenced, match="etag"):
        await update("weight", etag=job.etag, weight=2.0)
    assert (await update("weight", etag=changed.etag, weight=2.0)).spec.weight == 2.0
    await site.jobs.CancelJob(name=job.name)
    with pytest.raises(PreconditionFailed, match="ended"):
        await update("weight", weight=3.0)


async def test_a_lowered_budget_ends_a_job_at_once_and_without_a_judged_agent_it_has_failed(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=100))
    mask = field_mask_pb2.FieldMask(paths=["objective.max_env_steps"])
    spec = job_pb2.JobSpec(objective=evolution_pb2.Objective(max_env_steps=150))
    done = (await site.jobs.UpdateJob(name=job.name, update_mask=mask, spec=spec)).job
    assert (done.state, done.outcome) == (
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_OUTCOME_NOTHING_JUDGED,
    )
    assert done.problem.reason == "NOTHING_JUDGED"
    assert done.unjudged.checkpoint.env_steps == 100
    assert (
        await site.artifacts.GetArtifact(name=f"{job.name}/checkpoints/best")
    ).artifact.name.startswith(done.unjudged.agent)


async def test_delete_removes_everything_of_an_ended_job_and_its_leaderboard(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    with pytest.raises(PreconditionFailed):
        await site.jobs.DeleteJob(name=job.name)
    await learner.complete(train=learner.train_result(steps=100, score=500.0))
    await learner.confirm(500.0)
    assert list(site.store.list(f"projects/default/jobs/{job.uid}/"))
    await site.jobs.DeleteJob(name=job.name)
    with pytest.raises(NotFound):
        await site.job(job.name)
    assert not list(site.store.list(f"projects/default/jobs/{job.uid}/"))
    await until(lambda: not site.board.boards)
    assert len(site.board.heard(leaderboard_pb2.DeleteLeaderboardRequest)) == 1


async def test_a_new_job_may_have_the_name_of_one_deleted_while_the_leaderboard_was_away(
    site, make_spec
):
    request = service_pb2.CreateJobRequest(spec=make_spec(), job_id="twice")
    job = (await site.client.jobs.CreateJob(request)).job
    await site.jobs.CancelJob(name=job.name)
    site.board.is_away = True
    await site.jobs.DeleteJob(name=job.name)
    again = (await site.client.jobs.CreateJob(request)).job
    assert again.uid != job.uid
    site.board.is_away = False
    assert (await site.learner().ask(wait_s=10)).job_uid == again.uid
    order = [type(call).__name__ for call in site.board.calls]
    assert order.index("DeleteLeaderboardRequest") < len(order) - 1 - order[::-1].index(
        "CreateLeaderboardRequest"
    )


async def test_a_watcher_misses_nothing_across_reconnections_and_restarts(site):
    job = await site.create()
    learner = site.learner()
    seen: list[int] = []

    async def watch(limit: int) -> job_pb2.Job:
        request = service_pb2.WatchJobRequest(name=job.name, after_position=seen[-1] if seen else 0)
        news = None
        async for news in site.client.jobs.WatchJob(request):
            seen.extend(event.position for event in news.events)
            if len(seen) >= limit:
                break
        return news.job

    await learner.ask()
    await watch(limit=2)
    await learner.complete(train=learner.train_result(steps=1))
    await site.restart()
    learner = site.learner()
    await learner.ask()
    await learner.complete(train=learner.train_result(steps=1, score=480.0))
    await learner.confirm(480.0)
    final = await watch(limit=1000)
    assert final.state == job_pb2.JOB_STATE_SUCCEEDED
    assert seen == list(range(1, final.event_position + 1))


async def test_a_watch_of_a_running_job_gets_live_news_and_is_told_when_the_server_drains(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    messages = []

    async def watch():
        stream = site.jobs.WatchJob(name=job.name)
        async for news in stream:
            messages.append(news)  # noqa: PERF401 - the test looks at it meanwhile

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(30):
        while not messages:
            await asyncio.sleep(0.01)
        await learner.renew(steps=77)
        while messages[-1].job.progress.live_env_steps != 154:
            await asyncio.sleep(0.05)
    assert [pod.state for pod in messages[-1].pods] == [job_pb2.POD_STATE_WORKING]
    await site.stop()
    await asyncio.wait_for(watching, 30)
    assert messages[-1].draining


async def test_watchers_that_never_read_hold_up_nobody(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    request = service_pb2.WatchJobRequest(name=job.name)
    request.min_interval.FromMilliseconds(100)
    projects = [site.jobs.WatchJobs() for _ in range(50)]
    watchers = [site.client.jobs.WatchJob(request) for _ in range(100)] + projects
    for steps in range(1, 100):
        await learner.renew(steps=steps)
    assert (await site.job(job.name)).progress.live_env_steps == 198
    for watcher in watchers:
        watcher.cancel()
    await site.stop()  # and leaves none behind
    await site.start()
    assert (await site.job(job.name)).state == job_pb2.JOB_STATE_RUNNING


async def test_a_job_that_has_ended_counts_committed_steps_alone(site):
    job = await site.create()
    learner = site.learner()
    await learner.ask()
    await learner.renew(steps=77)
    assert (await site.job(job.name)).progress.live_env_steps == 154
    await site.jobs.CancelJob(name=job.name)
    assert (await site.job(job.name)).progress.live_env_steps == 0


async def test_a_watcher_of_a_project_misses_nothing_across_reconnections(site, make_spec):
    """It mirrors the project, whatever happens while no watcher listens."""
    mirror: dict[str, job_pb2.Job] = {}
    heard: dict[str, list[int]] = {}

    async def watch(until) -> None:
        positions = {uid: job.event_position for uid, job in mirror.items()}
        async with asyncio.timeout(60):
            stream = site.jobs.WatchJobs(after_positions=positions)
            async for news in stream:
                if news.deleted:
                    del mirror[news.deleted]
                elif news.HasField("job"):
                    mirror[news.job.uid] = news.job
                    heard.setdefault(news.job.uid, []).extend(
                        event.position for event in news.events
                    )
                if until(news):
                    break
            stream.cancel()

    async def cancel(job: job_pb2.Job) -> None:
        await site.jobs.CancelJob(name=job.name)

    old, gone = await site.create(), await site.create()
    other_uid = (await site.jobs.CreateJob(parent="projects/other", spec=make_spec())).job.uid
    await watch(lambda news: len(mirror) == 2)
    assert list(mirror) == [old.uid, gone.uid]
    known = mirror[old.uid].event_position
    assert heard == {old.uid: [], gone.uid: []}

    await cancel(gone)
    await site.jobs.DeleteJob(name=gone.name)
    await cancel(old)
    new = await site.create()
    await site.restart()
    await watch(
        lambda news: (
            set(mirror) == {old.uid, new.uid}
            and mirror[old.uid].state == job_pb2.JOB_STATE_CANCELLED
        )
    )
    assert heard[old.uid] == list(range(known + 1, mirror[old.uid].event_position + 1))
    assert heard[new.uid] == list(range(1, mirror[new.uid].event_position + 1))

    watching = asyncio.create_task(watch(lambda news: news.draining))
    newer = await site.create()
    lease = await site.learner().ask()
    async with asyncio.timeout(60):
        while newer.uid not in mirror or mirror[lease.job_uid].state != job_pb2.JOB_STATE_RUNNING:
            await asyncio.sleep(0.02)
    await site.stop()
    await watching
    assert other_uid not in heard
    assert all(positions == sorted(set(positions)) for positions in heard.values())


async def test_events_are_listed_in_pages(site):
    job = await site.create()
    await site.learner().ask()
    first = await site.jobs.ListEvents(job=job.name, page_size=2)
    assert first.more
    rest = await site.jobs.ListEvents(job=job.name, after_position=2)
    positions = [event.position for event in (*first.events, *rest.events)]
    assert positions == list(range(1, len(positions) + 1))
