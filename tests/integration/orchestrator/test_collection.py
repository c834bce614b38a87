"""Which checkpoints stay and which are deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from podracer.common.v1 import evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.checkpoint import load_checkpoint, save_checkpoint
from podracer_core.errors import Unavailable
from podracer_core.storage import FILE_NAME, CheckpointPlace, ManifestFile
from podracer_platform.rpc import bearer
from support.processes import until

ONE = job_pb2.PodShape(members=1, max_count=2)
LONG = evolution_pb2.Objective(max_env_steps=1_000_000_000)


@pytest.fixture
async def site(site: Any) -> Any:
    """Nothing is too young to be deleted; only the newest of each agent stays by itself."""
    await site.restart(collect_after=0.0, keep_last=1, keep_best=0)
    return site


async def trained(site: Any, learner: Any, *scores: float | None) -> list[str]:
    """Rounds of an agent each, in which it commits in between; the prefixes of its final
    checkpoints."""
    finals = []
    for score in scores:
        await learner.ask()
        await learner.commit(steps=100)
        result = learner.train_result(steps=200, score=score)
        finals.append(result.members[0].final.checkpoint.prefix)
        await learner.complete(train=result)
    return finals


def stored(site: Any) -> set[str]:
    """The prefixes of all checkpoints of which anything is in the store."""
    places = (CheckpointPlace.of_object(info.key) for info in site.store.list())
    return {place.prefix for place in places if place is not None}


async def test_what_nothing_needs_goes_and_the_rest_stays(site):
    job = await site.create(pod=ONE, objective=LONG)
    first, second, third = await trained(site, site.learner(), 10.0, None, 30.0)
    assert len(stored(site)) == 6
    would = await site.jobs.CollectCheckpoints(validate_only=True)
    assert (would.checkpoint_count, len(stored(site))) == (3, 6)
    found = await site.jobs.CollectCheckpoints()
    assert (found.checkpoint_count, found.size_bytes) == (would.checkpoint_count, would.size_bytes)
    assert found.size_bytes > 0
    assert stored(site) == {first, second, third}, (
        "the newest of each agent; fresh agents are proposed each time"
    )
    listed = await site.artifacts.ListArtifacts(parent=job.name)
    assert {artifact.uri for artifact in listed.artifacts} == {first, second, third}
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0


async def test_of_those_who_retired_only_what_is_the_jobs_best_or_has_a_place_or_an_alias_stays(
    site,
):
    job = await site.create(pod=ONE, objective=LONG)
    learner = site.learner()
    finals = await trained(site, learner, 10.0, 20.0, 50.0, 40.0, 30.0)
    agents = [CheckpointPlace.parse(final).agent for final in finals]
    site.board.retired = {
        f"{job.name}/agents/{CheckpointPlace.parse(final).agent}" for final in finals
    }
    placed = leaderboard_pb2.Candidate(rank=1)
    placed.evaluation.checkpoint.prefix = finals[1]
    site.board.candidates = [placed]
    alias = leaderboard_pb2.AliasChange(alias="champion", agent=agents[0])
    alias.checkpoint.prefix = finals[0]
    site.board.alias_changes = [alias]
    await site.jobs.CollectCheckpoints()
    assert stored(site) == {finals[0], finals[1], finals[2]}


async def test_the_best_few_of_a_job_stay(site):
    await site.restart(keep_best=2)
    job = await site.create(pod=ONE, objective=LONG)
    finals = await trained(site, site.learner(), 10.0, 50.0, 20.0, 40.0)
    site.board.retired = {
        f"{job.name}/agents/{CheckpointPlace.parse(final).agent}" for final in finals
    }
    await site.jobs.CollectCheckpoints()
    assert stored(site) == {finals[1], finals[3]}


async def test_what_was_challenged_stays(site):
    job = await site.create(pod=ONE, objective=LONG)
    learner, site.board.hears_claims = site.learner(), True
    (best,) = await trained(site, learner, 20.0)
    await learner.confirm(20.0)
    (challenged,) = await trained(site, learner, 50.0)
    await learner.confirm(5.0)
    site.board.hears_claims = False
    await trained(site, learner, 10.0)
    site.board.retired = {
        f"{job.name}/agents/{CheckpointPlace.parse(each).agent}" for each in stored(site)
    }
    await site.jobs.CollectCheckpoints()
    assert stored(site) == {best, challenged}


async def test_what_a_held_lease_has_written_stays_and_what_a_dead_one_has_left_goes(site):
    await site.create(pod=ONE, objective=LONG)
    learner = site.learner()
    lease = await learner.ask()
    agent = lease.train.cohort.members[0].name
    await learner.commit(steps=100)
    uncommitted = learner.checkpoint(agent, 150).prefix
    half = CheckpointPlace(
        "default", lease.job_uid, agent.rpartition("/")[2], 170, lease.fence
    ).prefix
    site.store.put(f"{half}actor.safetensors", b"half a checkpoint")
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0
    await learner.release()
    found = await site.jobs.CollectCheckpoints()
    assert set(found.prefixes) == {uncommitted, half}
    after = await learner.ask()
    assert after.train.cohort.members[0].resume.prefix in stored(site), "its work begins there"
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0


async def test_what_is_young_stays(site):
    await site.restart(collect_after=3600.0)
    await site.create(pod=ONE, objective=LONG)
    await trained(site, site.learner(), 10.0, 20.0)
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0


async def test_nothing_goes_while_the_leaderboard_cannot_be_asked(site):
    await site.create(pod=ONE, objective=LONG)
    await trained(site, site.learner(), 10.0, 20.0)
    site.board.is_away = True
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0
    site.board.is_away = False
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 2


async def test_it_is_done_now_and_then_by_itself_and_goes_on_where_it_died(site, monkeypatch):
    await site.restart(collect_every=1.0)
    await site.create(pod=ONE, objective=LONG)
    collector = site.server.orchestrator.retention

    def die(stored: Any) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(collector, "_delete", die)
    await trained(site, site.learner(), 10.0, 20.0)
    await asyncio.sleep(1.5)
    assert len(stored(site)) == 4, "forgotten, and still there"
    monkeypatch.undo()
    await until(lambda: len(stored(site)) == 2)
    assert all(site.store.exists(f"{prefix}{FILE_NAME}") for prefix in stored(site))


async def test_where_children_of_a_place_on_the_board_start_stays(site):
    job = await site.create(pod=ONE, objective=LONG)
    first, second = await trained(site, site.learner(), 10.0, 20.0)
    site.board.retired = {
        f"{job.name}/agents/{CheckpointPlace.parse(each).agent}" for each in (first, second)
    }
    placed = leaderboard_pb2.Candidate(rank=1)
    placed.evaluation.checkpoint.prefix = second
    placed.agent.best_evaluation.checkpoint.prefix = first
    site.board.candidates = [placed]
    await site.jobs.CollectCheckpoints()
    assert stored(site) == {first, second}


async def test_transitions_that_another_checkpoint_names_stay_while_it_does(site):
    await site.create(pod=ONE, objective=LONG)
    learner = site.learner()
    lease = await learner.ask()
    agent = lease.train.cohort.members[0].name
    earlier: tuple[ManifestFile, ...] = ()
    prefixes = []
    for steps, parts in ((100, "ab"), (200, "abc"), (300, "bcd")):
        place = CheckpointPlace(
            "default", lease.job_uid, agent.rpartition("/")[2], steps, lease.fence
        )
        groups = {
            f"replay/{part}": {"reward": torch.full((9,), float(ord(part)))} for part in parts
        }
        member = learner.member(lease.train.cohort.members[0], steps)
        reference = save_checkpoint(site.store, place.prefix, groups, {}, earlier)
        earlier = reference.files
        prefixes.append(place.prefix)
        member.checkpoint.manifest_sha256, member.checkpoint.prefix = (
            reference.manifest_sha256,
            place.prefix,
        )
        request = pod_pb2.CommitCheckpointRequest(
            lease=lease.name, fence=lease.fence, members=[member]
        )
        await learner.pods.CommitCheckpoint(request, metadata=bearer(lease.token))
    await learner.release()
    would = await site.jobs.CollectCheckpoints(validate_only=True)
    found = await site.jobs.CollectCheckpoints()
    assert set(found.prefixes) == set(would.prefixes) == set(prefixes[:2])
    assert found.size_bytes == would.size_bytes
    left = {info.key for info in site.store.list() if info.key.startswith(tuple(prefixes[:2]))}
    assert left == {f"{prefixes[0]}replay/b.safetensors", f"{prefixes[1]}replay/c.safetensors"}
    assert set(load_checkpoint(site.store, prefixes[2]).groups) == {
        "replay/b",
        "replay/c",
        "replay/d",
    }
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0, "nothing more to delete"
    site.store.put(f"{prefixes[2]}{FILE_NAME}", b"damaged")
    assert (await site.jobs.CollectCheckpoints()).checkpoint_count == 0, (
        "who knows what it has named"
    )
