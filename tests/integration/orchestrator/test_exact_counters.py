"""Whatever pods, clocks and crashes do, steps are counted once and never go back: checked against a model.

Pods lease, commit, complete, freeze, come back as zombies and repeat their calls; leases expire; answers are lost; the
orchestrator is killed and started again on the same file. The model knows what each lease may still do and what must
have been counted; it is held against the database after every step of a random history.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.database import open_database
from podracer_core.errors import Fenced, Unavailable
from podracer_core.jobs.messages import seconds_to_duration
from podracer_core.rpc.tokens import LeaseTokens
from podracer_core.storage.layout import checkpoint_prefix
from podracer_core.storage.manifest import FILE_NAME, Manifest, ManifestFile
from podracer_core.storage.object_store import open_store
from podracer_orchestrator import jobs, leases, submission
from podracer_orchestrator.changes import ChangeFeed
from podracer_orchestrator.clock import Clock
from podracer_orchestrator.delivery import Delivery
from podracer_orchestrator.dispatch import Ask, Dispatcher
from podracer_orchestrator.lease_keeping import Holder, LeaseKeeper
from podracer_orchestrator.outbox import REQUEST_TYPES
from podracer_orchestrator.pods import PodReport
from podracer_orchestrator.proposing import CohortProposer
from podracer_orchestrator.results import member_commit
from podracer_orchestrator.tables import JobRow, MemberRow, WorkRow
from podracer_orchestrator.terms import LeaseTerms, LiveReport
from podracer_orchestrator.transactions import Transactions

TERM_S = 10.0
PODS = tuple(f"projects/default/pods/p{index}" for index in range(3))


class ManualClock(Clock):
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


class Board:
    """A leaderboard that survives the orchestrator, is idempotent, and may lose its answers on the way."""

    def __init__(self) -> None:
        self.proposals: dict[str, leaderboard_pb2.ProposeCohortResponse] = {}
        self.submissions: dict[str, leaderboard_pb2.SubmitCandidateRequest] = {}
        self.loses_answers = 0
        self.agent_count = 0

    async def propose(self, request):
        if request.request_id not in self.proposals:
            response = leaderboard_pb2.ProposeCohortResponse(round_env_steps=1000)
            for _ in range(request.places):
                self.agent_count += 1
                agent = response.proposals.add(action=leaderboard_pb2.PROPOSAL_ACTION_FRESH).agent
                agent.name = f"projects/default/jobs/j/agents/a{self.agent_count}"
                agent.algorithm = "ppo"
            self.proposals[request.request_id] = response
        self._maybe_lose()
        return self.proposals[request.request_id]

    async def call(self, method, request):
        decoded = REQUEST_TYPES[method].FromString(request)
        if isinstance(decoded, leaderboard_pb2.SubmitCandidateRequest):
            former = self.submissions.setdefault(decoded.request_id, decoded)
            assert former == decoded, "the same request id must always carry the same request"
        self._maybe_lose()
        return leaderboard_pb2.SubmitCandidateResponse()

    def _maybe_lose(self) -> None:
        if self.loses_answers:
            self.loses_answers -= 1
            raise Unavailable("the answer was lost on the way")


@dataclass
class Held:
    """A pod's view of a lease, alive or not."""

    pod: str
    request_id: str
    lease: pod_pb2.Lease
    deadline: float
    base: dict[str, int]
    steps: int = 0
    ended: bool = False
    completed: bool = False
    released: bool = False
    commits: list[int] = field(default_factory=list)

    @property
    def holder(self) -> Holder:
        return Holder(self.lease.name.rpartition("/")[2], self.lease.fence)

    @property
    def agents(self) -> list[agent_pb2.AgentSpec]:
        return list(self.lease.train.cohort.members)


class History:
    """A random history of one job, and the model of what it must have come to."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.folder = folder
        self.store = open_store(f"file://{folder}/store")
        self.clock, self.board = ManualClock(), Board()
        self.instances = dict.fromkeys(PODS, "first")
        self.held: list[Held] = []
        self.counted: dict[str, int] = defaultdict(int)  # agent: steps that must have been counted
        self.seen_steps = 0
        self.fences: list[int] = []
        self.done: Counter[str] = Counter()
        self.open()
        spec = submission.checked(
            job_pb2.JobSpec(
                display_name="j",
                environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"),
                objective=evolution_pb2.Objective(max_env_steps=10**9),
                evolution=evolution_pb2.Evolution(population=4, leaderboard_size=2),
                pod=job_pb2.PodShape(members=2, max_count=len(PODS)),
            )
        )
        new = jobs.NewJob("default", "j", spec, submission.description_of(spec))
        self.run(self.transactions.write(lambda session: jobs.create(session, new, self.clock.now()).uid))

    def step(self) -> None:
        """Something happens."""
        happenings = {
            self.ask: 5,
            self.renew: 3,
            self.commit: 10,
            self.complete: 2,
            self.release: 1,
            self.let_time_pass: 3,
            self.restart_learner: 1,
            self.lose_pod: 1,
            self.kill_orchestrator: 1,
        }
        (happening,) = self.random.choices(list(happenings), list(happenings.values()))
        if self.held or happening == self.ask:
            happening()

    def ask(self) -> None:
        pod, again = self.random.choice(PODS), self.random.random() < 0.3
        self.board.loses_answers = self.random.choice([0, 0, 0, 0, 1, 2])
        self.clock.seconds += 1.0  # after a lost answer the leaderboard is not asked again sooner
        mine = [held for held in self.held if held.pod == pod and not held.ended]
        request_id = mine[-1].request_id if again and mine else uuid.uuid4().hex
        was_alive = bool(mine) and self.alive(mine[-1])
        report = PodReport(pod, self.instances[pod], "FUSED", "", b"")
        lease = self.run(self.dispatcher.lease(Ask(report, request_id), 0.0))
        if again and mine and not was_alive:
            assert lease is None, "a spent request gets nothing"
            mine[-1].ended = True
            return
        if again and mine:
            assert (lease.fence, lease.token) == (mine[-1].lease.fence, mine[-1].lease.token)
            mine[-1].deadline = self.clock.seconds + TERM_S
            self.done["asked again"] += 1
            return
        for held in mine:
            held.ended = True  # whoever asks anew has given up what it held
        if lease is None or lease.WhichOneof("work") != "train":
            return
        self.fences.append(lease.fence)
        for agent in lease.train.cohort.members:
            assert agent.env_steps == self.counted[agent.name], "the pod goes on from what is committed"
            assert agent.HasField("resume") == bool(self.counted[agent.name])
        base = {agent.name: self.counted[agent.name] for agent in lease.train.cohort.members}
        self.held.append(Held(pod, request_id, lease, self.clock.seconds + TERM_S, base))
        self.done["leased on" if any(base.values()) else "leased"] += 1

    def renew(self) -> None:
        held = self.pick()
        report = LiveReport({agent.name: held.steps for agent in held.agents})
        if self.attempt(held, self.keeper.renew(held.holder, report, ())):
            held.deadline = self.clock.seconds + TERM_S

    def commit(self) -> None:
        held = self.pick()
        held.steps += self.random.randint(1, 100)
        replays = bool(held.commits) and self.random.random() < 0.4
        steps = self.random.choice(held.commits) if replays else held.steps
        commits = [member_commit(self.member(held, agent, steps)) for agent in held.agents]
        if self.attempt(held, self.keeper.commit(held.holder, commits)):
            held.commits.append(steps)
            self.count(held, steps)
            self.done["committed again" if replays else "committed"] += 1

    def complete(self) -> None:
        held = self.pick()
        if held.completed:  # the answer was lost: the same call again
            self.run(self.keeper.complete(held.holder, self.result(held)))
            self.done["completed again"] += 1
            return
        held.steps += self.random.randint(1, 100)
        if self.attempt(held, self.keeper.complete(held.holder, self.result(held))):
            held.ended = held.completed = True
            self.count(held, held.steps)
            self.done["completed"] += 1

    def release(self) -> None:
        held = self.pick()
        if held.released:  # the answer was lost: the same call again
            self.run(self.keeper.release(held.holder, cohort_pb2.Problem()))
        elif self.attempt(held, self.keeper.release(held.holder, cohort_pb2.Problem())):
            held.ended = held.released = True
            self.done["released"] += 1

    def let_time_pass(self) -> None:
        self.clock.seconds += self.random.choice([0.5, 2.0, 0.6 * TERM_S, 1.2 * TERM_S])
        if self.random.random() < 0.5:
            self.run(self.keeper.expire_overdue())

    def restart_learner(self) -> None:
        self.instances[self.random.choice(PODS)] = uuid.uuid4().hex

    def lose_pod(self) -> None:
        pod = self.random.choice(PODS)
        self.run(self.keeper.lose_pod(pod, None, "its process died"))
        for held in self.held:
            held.ended = held.ended or held.pod == pod

    def kill_orchestrator(self) -> None:
        self.run(self.database.close())
        self.open()
        held_now = self.run(self.transactions.read(lambda session: [row.fence for row in leases.held(session)]))
        for held in self.held:
            if held.lease.fence in held_now:
                assert not held.ended
                held.deadline = self.clock.seconds + TERM_S  # a full term after a restart, also for an overdue one
        self.done["killed"] += 1

    def check(self) -> None:
        """The database says what the model says."""

        def read(session: Session) -> tuple[int, int]:
            steps = session.scalars(select(JobRow.env_steps)).one()
            return steps, sum(session.scalars(select(MemberRow.env_steps)))

        steps, of_members = self.run(self.transactions.read(read))
        assert steps == of_members == sum(self.counted.values())
        assert steps >= self.seen_steps
        self.seen_steps = steps
        assert self.fences == sorted(set(self.fences))

    def end(self) -> None:
        """The leaderboard has heard of every completed round once, and was asked once for each cohort."""
        self.board.loses_answers = 0
        self.run(self.delivery.flush("projects/default/leaderboards/j"))
        completed = [held for held in self.held if held.completed]
        # Works that were lost too often are reported as failed, besides.
        rounds = [request for request in self.board.submissions.values() if not request.failure]
        assert len(rounds) == sum(len(held.agents) for held in completed)
        assert sum(request.env_steps for request in rounds) == sum(
            self.counted[agent.name] for held in completed for agent in held.agents
        )
        works = self.run(self.transactions.read(lambda session: set(session.scalars(select(WorkRow.id)))))
        assert set(self.board.proposals) <= works
        self.run(self.database.close())
        self.loop.close()

    def open(self) -> None:
        changes = ChangeFeed()
        self.database = open_database(f"sqlite:///{self.folder}/o.sqlite", "podracer_orchestrator.migrations")
        self.transactions = Transactions(self.database, changes)
        self.terms = LeaseTerms(self.clock, TERM_S)
        self.keeper = LeaseKeeper(self.transactions, self.terms, self.store, changes, self.clock)
        self.delivery = Delivery(self.transactions, self.board, changes, self.clock)
        tokens = LeaseTokens(b"s" * 32)
        proposer = CohortProposer(self.transactions, self.board, self.delivery, self.clock)
        self.dispatcher = Dispatcher(self.transactions, self.terms, tokens, proposer, changes, self.clock)
        self.run(self.keeper.recover())

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def pick(self) -> Held:
        """A lease that lives, or any, so that zombies have their say too."""
        living = [held for held in self.held if self.alive(held)]
        return self.random.choice(living if living and self.random.random() < 0.7 else self.held)

    def alive(self, held: Held) -> bool:
        return not held.ended and self.clock.seconds < held.deadline

    def attempt(self, held: Held, call) -> bool:
        """Make a call that must succeed exactly while the lease lives."""
        if self.alive(held):
            self.run(call)
            return True
        with pytest.raises(Fenced):
            self.run(call)
        return False

    def count(self, held: Held, steps: int) -> None:
        for agent in held.agents:
            self.counted[agent.name] = max(self.counted[agent.name], held.base[agent.name] + steps)

    def member(self, held: Held, agent: agent_pb2.AgentSpec, steps: int) -> pod_pb2.MemberCheckpoint:
        total = agent.env_steps + steps
        prefix = checkpoint_prefix(
            "default", held.lease.job_uid, agent.name.rpartition("/")[2], total, held.lease.fence
        )
        manifest = Manifest((), {"agent": agent.name, "steps": total}, {}).to_json()
        self.store.put(f"{prefix}{FILE_NAME}", manifest)
        sha256 = ManifestFile.describe(FILE_NAME, manifest).sha256
        return pod_pb2.MemberCheckpoint(
            progress=pod_pb2.MemberProgress(agent=agent.name, env_steps=steps, cost=seconds_to_duration(steps * 0.001)),
            checkpoint=agent_pb2.CheckpointReference(
                prefix=prefix, manifest_sha256=sha256, env_steps=total, fence=held.lease.fence
            ),
        )

    def result(self, held: Held) -> pod_pb2.TrainResult:
        members = [pod_pb2.MemberResult(final=self.member(held, agent, held.steps)) for agent in held.agents]
        return pod_pb2.TrainResult(members=members)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_history_counts_every_step_once(tmp_path, seed):
    history = History(tmp_path, seed)
    for _ in range(140):
        history.step()
        history.check()
    history.end()
    # What was meant to happen did happen: a test that only ever waits proves nothing.
    expected = {"leased", "leased on", "asked again", "committed", "committed again", "completed", "killed"}
    assert expected <= set(history.done)
