"""A database of an older version is brought up to date, and its jobs go on."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_orchestrator.jobs import submission
from podracer_orchestrator.tables import Base
from podracer_platform.rpc.tokens import LeaseTokens
from support.old_database import at_revision, insert, revisions


async def test_the_migrations_make_the_tables(site):
    engine = create_engine(f"sqlite:///{site.folder}/orchestrator.sqlite")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


async def test_a_job_of_an_older_version_goes_on_with_its_lease_and_its_best(
    site, make_spec, make_evaluation
):
    await site.stop()
    spec = submission.checked(make_spec(pod=job_pb2.PodShape(members=1))).SerializeToString()
    best = make_evaluation("projects/default/jobs/old/agents/a1", 100.0)
    (site.folder / "orchestrator.sqlite").unlink()
    url = f"sqlite:///{site.folder}/orchestrator.sqlite"
    rows = {
        "settings": {"name": "lease_secret", "value": b"s" * 32},
        "jobs": {
            **dict.fromkeys(("agent_count", "completed_rounds", "revision"), 1),
            **dict.fromkeys(("event_position", "failed_works", "rounds_over"), 0),
            **{
                "uid": "u",
                "project": "default",
                "job_id": "old",
                "spec": spec,
                "state": "RUNNING",
                "outcome": "",
            },
            **{
                "env_steps": 10,
                "cost_s": 1.0,
                "evaluation_cost_s": 0.0,
                "active_time_s": 1.0,
                "active_since": 1,
            },
            **{"best": best.SerializeToString(), "best_score": 100.0, "best_is_full": True},
            **{"create_time": 1, "start_time": 1},
        },
        "pods": {
            **dict.fromkeys(("layout", "address", "instance_id", "message"), ""),
            **{
                "name": "projects/default/pods/old-0",
                "project": "default",
                "job_uid": "u",
                "backend": "static",
            },
            **{"state": "WORKING", "restart_count": 0, "create_time": 1, "last_seen_time": 1},
        },
        "works": {
            **{
                "id": "w",
                "job_uid": "u",
                "kind": "TRAIN",
                "state": "LEASED",
                "places": 1,
                "attempts": 0,
            },
            **{"proposal": _proposal().SerializeToString(), "create_time": 1},
        },
        "work_members": {
            **dict.fromkeys(("position", "env_steps", "base_env_steps"), 0),
            **dict.fromkeys(
                ("cost_s", "evaluation_cost_s", "base_cost_s", "base_evaluation_cost_s"), 0.0
            ),
            **{"work_id": "w", "agent": "projects/default/jobs/old/agents/a2"},
        },
        "leases": {
            **{
                "fence": 7,
                "id": "l",
                "work_id": "w",
                "job_uid": "u",
                "kind": "TRAIN",
                "state": "HELD",
            },
            **{
                "pod": "projects/default/pods/old-0",
                "instance_id": "i",
                "request_id": "r",
                "is_cut": False,
            },
            **{
                "member_env_steps": 100,
                "reserved_env_steps": 100,
                "reserved_cost_s": 0.0,
                "active_time_s": 0.0,
            },
            **{"grant_time": 1},
        },
    }
    with at_revision(url, "r0002") as connection:
        for table, row in rows.items():
            insert(connection, table, **row)

    await site.start()
    found = await site.job("projects/default/jobs/old")
    assert (found.state, found.progress.env_steps, found.progress.best.mean) == (
        job_pb2.JOB_STATE_RUNNING,
        10,
        100.0,
    )
    learner = site.learner("projects/default/pods/old-0")
    learner.lease = pod_pb2.Lease(
        name="projects/default/leases/l",
        fence=7,
        token=LeaseTokens(b"s" * 32).issue("l", 7),
        job_uid="u",
    )
    learner.lease.train.cohort.members.add(name="projects/default/jobs/old/agents/a2")
    assert await learner.renew() == pod_pb2.LEASE_ACTION_CONTINUE
    await learner.complete(train=learner.train_result(steps=30, score=480.0))
    await learner.confirm(476.0)
    done = await site.job("projects/default/jobs/old")
    assert (done.outcome, done.progress.env_steps) == (job_pb2.JOB_OUTCOME_TARGET_REACHED, 40)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_each_thing_that_was_evaluated_gets_a_kind(engine, request, tmp_path):
    """What it was, its columns had told."""
    url = f"sqlite:///{tmp_path}/o.sqlite"
    if engine == "postgresql":
        url = request.getfixturevalue("postgresql").create_database("kinds")
    columns = {
        "CHALLENGE": {"kind": "EVALUATE", "checkpoint": "a/b/"},
        "CONTEST": {"kind": "EVALUATE", "contest": "champion"},
        "ENSEMBLE": {"kind": "EVALUATE"},
        "TRAIN": {"kind": "TRAIN"},
        "RETRAIN": {"kind": "RETRAIN"},
    }
    with at_revision(url, "r0011") as connection:
        insert(connection, "jobs", uid="u")
        for fence, (kind, row) in enumerate(columns.items(), 2):
            insert(connection, "works", id=kind, job_uid="u", **row)
            lease = {"id": kind, "request_id": kind, "work_id": kind, "job_uid": "u"}
            insert(connection, "leases", fence=fence, kind=row["kind"], **lease)
        lease = {"id": "f", "request_id": "f", "work_id": "TRAIN", "job_uid": "u"}
        insert(connection, "leases", fence=1, kind="FOLLOW", **lease)
        revisions()["r0012"].module.upgrade()
        works = connection.execute(text("SELECT id, kind FROM works")).all()
        leases = connection.execute(text("SELECT id, kind FROM leases")).all()
    assert dict(works) == {kind: kind for kind in columns}
    assert dict(leases) == {kind: kind for kind in columns} | {"f": "FOLLOW"}


def _proposal():
    response = leaderboard_pb2.ProposeCohortResponse(round_env_steps=100)
    agent = response.proposals.add(action=leaderboard_pb2.PROPOSAL_ACTION_FRESH).agent
    agent.name, agent.algorithm = "projects/default/jobs/old/agents/a2", "ppo"
    return response
