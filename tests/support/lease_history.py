"""A history of one job's leases, step by step, and the model of what must have been counted.

Pods lease, commit, complete, freeze, drain, come back as zombies and repeat their calls; candidates
claim the target or the first place, and are challenged; the job is scaled, suspended and resumed;
leases expire; answers are lost; the orchestrator is killed and started again on the same file. With
several learners pods lead teams, follow, leave and are set free by the end of their lead. The model
knows what each lease may still do and what must have been counted; it is held against the database
after every step."""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import Fenced, InvalidInput, Unavailable
from podracer_core.storage.layout import checkpoint_prefix
from podracer_core.storage.manifest import FILE_NAME, Manifest, ManifestFile
from podracer_orchestrator.api import job_changes
from podracer_orchestrator.board.delivery import Delivery
from podracer_orchestrator.board.requests import CohortProposer
from podracer_orchestrator.dispatch.capabilities import Capabilities
from podracer_orchestrator.dispatch.dispatcher import Ask, Dispatcher
from podracer_orchestrator.dispatch.lease_operations import LeaseOperations
from podracer_orchestrator.jobs import jobs, submission
from podracer_orchestrator.leases import followers, leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines, LiveReport
from podracer_orchestrator.leases.leases import Holder
from podracer_orchestrator.outcomes import ending
from podracer_orchestrator.pool import pods
from podracer_orchestrator.pool.pods import PodReport
from podracer_orchestrator.tables import (
    JobRow,
    LeaseRow,
    LeaseState,
    MemberRow,
    PodState,
    WorkRow,
    WorkState,
)
from podracer_orchestrator.transactions import ChangeFeed, Transactions
from podracer_orchestrator.works import evaluation_works
from podracer_orchestrator.works.train_results import member_commit
from podracer_platform.database import open_database
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.rpc.tokens import LeaseTokens
from podracer_platform.storage import open_store
from support.manual_clock import ManualClock
from support.new_database import new_database

TERM_S = 10.0
TARGET = 100.0
CHALLENGE = agent_pb2.EVALUATION_PURPOSE_CHALLENGE
PODS = tuple(f"projects/default/pods/p{index}" for index in range(5))


class Board:
    """A leaderboard that survives the orchestrator, is idempotent, and may lose its answers on the
    way."""

    def __init__(self) -> None:
        self.proposals: dict[str, leaderboard_pb2.ProposeCohortResponse] = {}
        self.submissions: dict[str, leaderboard_pb2.SubmitCandidateRequest] = {}
        self.evaluations: dict[str, agent_pb2.Evaluation] = {}
        self.loses_answers = 0
        self.agent_count = 0

    async def propose(self, request):
        return self._answered(self._propose(request))

    def _propose(self, request):
        if request.request_id not in self.proposals:
            response = leaderboard_pb2.ProposeCohortResponse(round_env_steps=1000)
            for _ in range(request.places):
                self.agent_count += 1
                agent = response.proposals.add(action=leaderboard_pb2.PROPOSAL_ACTION_FRESH).agent
                agent.name = f"projects/default/jobs/j/agents/a{self.agent_count}"
                agent.algorithm = "ppo"
            self.proposals[request.request_id] = response
        return self.proposals[request.request_id]

    async def get(self, name):
        return self._answered(leaderboard_pb2.Leaderboard(name=name))

    async def exchange(self, name, steps):
        answers = []
        for step in steps:
            kind = step.WhichOneof("request")
            request = getattr(step, kind)
            answer = self._propose(request) if kind == "cohort" else self._call(request)
            answers.append(leaderboard_pb2.ExchangeResponse.Answer(**{kind: answer}))
        return self._answered(answers)

    async def call(self, method, request):
        return self._answered(self._call(request))

    def _call(self, request):
        if isinstance(request, leaderboard_pb2.SubmitCandidateRequest):
            former = self.submissions.setdefault(request.request_id, request)
            assert former == request, "the same request id must always carry the same request"
            claims = request.HasField("candidate")
            return leaderboard_pb2.SubmitCandidateResponse(
                admitted=claims, rank=1, challenge=claims
            )
        if isinstance(request, leaderboard_pb2.RecordEvaluationsRequest):
            for each in request.evaluations:
                assert self.evaluations.setdefault(each.evaluation_id, each) == each
        return leaderboard_pb2.RecordEvaluationsResponse()

    def _answered(self, answer):
        if self.loses_answers:
            self.loses_answers -= 1
            raise Unavailable("the answer was lost on the way")
        return answer


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
    granted: float = 0.0
    result: pod_pb2.TrainResult | pod_pb2.EvaluateResult | cohort_pb2.Problem | None = None

    @property
    def evaluates(self) -> bool:
        return self.lease.WhichOneof("work") == "evaluate"

    @property
    def follows(self) -> int:
        """The fence of its lead; 0 for none."""
        return self.lease.follow.lead_fence

    @property
    def holder(self) -> Holder:
        return Holder(self.lease.name.rpartition("/")[2], self.lease.fence)

    @property
    def agents(self) -> list[agent_pb2.AgentSpec]:
        return list(self.lease.train.cohort.members)


class History:
    """A random history of one job, and the model of what it must have come to."""

    def __init__(self, folder: Path, chance: random.Random, learners: int = 1) -> None:
        self.random = chance
        self.learners = learners
        self.pods = PODS[:3] if learners == 1 else PODS
        self.loop = asyncio.new_event_loop()
        self.folder = folder
        self.store = open_store(f"file://{folder}/store")
        self.clock, self.board = ManualClock(), Board()
        self.instances = dict.fromkeys(self.pods, "first")
        self.held: list[Held] = []
        self.counted: dict[str, int] = defaultdict(int)  # agent: steps that must have been counted
        self.seen_steps = 0
        self.fences: list[int] = []
        self.done: Counter[str] = Counter()
        self.challenges_cost_s, self.followers_cost_s, self.active_s = 0.0, 0.0, 0.0
        self.most_teams = 3 if learners == 1 else 2
        self.max_teams, self.suspended = self.most_teams, False
        self.open()
        spec = submission.checked(
            job_pb2.JobSpec(
                display_name="j",
                environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"),
                objective=evolution_pb2.Objective(max_env_steps=10**9, target_return=TARGET),
                evolution=evolution_pb2.Evolution(population=4, leaderboard_size=2),
                pod=job_pb2.PodShape(members=2, max_count=self.max_teams, learners=learners),
            )
        )
        new = jobs.NewJob("default", "j", spec, submission.known_description(spec))
        self.uid = self.write(lambda session: jobs.create(session, new, self.clock.now()).uid)

    def step(self) -> None:
        """Something happens."""
        happenings = {
            self.ask: 8,
            self.renew: 3,
            self.commit: 10,
            self.complete: 4,
            self.release: 1,
            self.let_time_pass: 3,
            self.restart_learner: 1,
            self.lose_pod: 1,
            self.kill_orchestrator: 1,
            self.drain_pod: 1,
            self.scale: 1,
            self.suspend_or_resume: 5 if self.suspended else 0.5,
        }
        (happening,) = self.random.choices(list(happenings), list(happenings.values()))
        if self.held or happening == self.ask:
            happening()
            self.set_followers_free()

    def ask(self) -> None:
        pod, again = self.random.choice(self.pods), self.random.random() < 0.3
        self.board.loses_answers = self.random.choice([0, 0, 0, 0, 1, 2])
        self.pass_time(1.0)  # after a lost answer the leaderboard is not asked again sooner
        mine = [held for held in self.held if held.pod == pod and not held.ended]
        request_id = mine[-1].request_id if again and mine else uuid.uuid4().hex
        was_alive = bool(mine) and self.alive(mine[-1])
        report = PodReport(pod, self.instances[pod], "FUSED", f"{pod}:7000", b"")
        lease = self.run(
            self.dispatcher.lease(Ask(report, request_id, Capabilities(can_fuse=True)), 0.0)
        )
        if again and mine and not was_alive:
            assert lease is None, "a spent request gets nothing"
            return
        if again and mine:
            assert (lease.fence, lease.token) == (mine[-1].lease.fence, mine[-1].lease.token)
            mine[-1].deadline = self.clock.seconds + TERM_S
            self.done["asked again"] += 1
            return
        for held in mine:
            held.ended = True  # a pod that asks again has given up its former lease
        if lease is not None and lease.HasField("exit"):
            self.write(lambda session: pods.set_state(session, pod, PodState.STOPPED))
            self.done["drained"] += 1
            return
        if lease is None:
            return
        assert not self.suspended
        assert not self.is_too_much(self.held_now()), "no more leases than the job wants pods"
        self.fences.append(lease.fence)
        for agent in (*lease.train.cohort.members, *lease.follow.train.cohort.members):
            assert agent.env_steps == self.counted[agent.name], (
                "the pod goes on from what is committed"
            )
            assert agent.HasField("resume") == bool(self.counted[agent.name])
        base = {agent.name: self.counted[agent.name] for agent in lease.train.cohort.members}
        self.held.append(
            Held(
                pod,
                request_id,
                lease,
                self.clock.seconds + TERM_S,
                base,
                granted=self.clock.seconds,
            )
        )
        if lease.WhichOneof("work") == "evaluate":
            evaluating = [fence for fence, kind in self.held_now().items() if kind == "CHALLENGE"]
            assert evaluating == [lease.fence], "one challenge at a time"
            self.done["challenged"] += 1
        elif lease.HasField("follow"):
            assert self.held_now()[lease.follow.lead_fence] == "TRAIN"
            self.done["followed"] += 1
        else:
            self.done["leased on" if any(base.values()) else "leased"] += 1

    def renew(self) -> None:
        held = self.pick()
        report = LiveReport({agent.name: held.steps for agent in held.agents})
        limit_s = evaluation_works.TIMEOUT_S + 60.0
        if held.evaluates and self.alive(held) and self.clock.seconds > held.granted + limit_s:
            return  # as if it had hung: another test's subject
        before = self.held_now()
        action = self.attempt(held, self.operations.renew(held.holder, report, ()))
        if action is None:
            return
        held.deadline = self.clock.seconds + TERM_S
        if action == pod_pb2.LEASE_ACTION_RELEASE:
            assert self.suspended or self.is_too_much(before)
        else:
            assert not self.suspended or action == pod_pb2.LEASE_ACTION_DRAIN
        if action != pod_pb2.LEASE_ACTION_CONTINUE and self.random.random() < 0.5:
            self.hand_back(held, cohort_pb2.Problem(reason="DRAINING"))

    def commit(self) -> None:
        held = self.pick()
        if held.evaluates:
            return
        if held.follows:
            with pytest.raises(InvalidInput if self.alive(held) else Fenced):
                self.run(self.operations.commit(held.holder, ()))
            return
        held.steps += self.random.randint(1, 100)
        replays = bool(held.commits) and self.random.random() < 0.4
        steps = self.random.choice(held.commits) if replays else held.steps
        commits = [member_commit(self.member(held, agent, steps)) for agent in held.agents]
        if self.attempt(held, self.operations.commit(held.holder, commits)) is not None:
            held.commits.append(steps)
            self.count(held, steps)
            self.done["committed again" if replays else "committed"] += 1

    def complete(self) -> None:
        held = self.pick()
        if held.completed:  # the answer was lost: the same call again
            self.run(self.operations.complete(held.holder, held.result))
            self.done["completed again"] += 1
            return
        held.steps += self.random.randint(1, 100)
        if held.follows:
            held.result = cohort_pb2.Problem(reason="LEAD_LOST", message="its lead does not answer")
        else:
            held.result = self.challenge_result(held) if held.evaluates else self.train_result(held)
        if self.attempt(held, self.operations.complete(held.holder, held.result)) is None:
            return
        held.ended = held.completed = True
        if held.evaluates:
            self.challenges_cost_s += held.result.cost.ToMilliseconds() / 1000.0
            self.done["challenge completed"] += 1
        elif held.follows:
            self.done["left"] += 1
        else:
            self.count(held, held.steps)
            self.done["completed"] += 1

    def release(self) -> None:
        held = self.pick()
        problem = cohort_pb2.Problem(reason=self.random.choice(["", "INTERNAL"]), message="why not")
        if held.released:  # the answer was lost: the same call again
            self.run(self.operations.release(held.holder, problem))
        else:
            self.hand_back(held, problem)

    def hand_back(self, held: Held, problem: cohort_pb2.Problem) -> None:
        if self.attempt(held, self.operations.release(held.holder, problem)) is not None:
            held.ended = held.released = True
            self.done["released"] += 1

    def let_time_pass(self) -> None:
        self.pass_time(self.random.choice([0.5, 2.0, 0.6 * TERM_S, 1.2 * TERM_S]))
        if self.random.random() < 0.5:
            self.run(self.operations.expire_overdue())
        else:
            self.write(lambda session: followers.count_costs(session, self.clock.now()))

    def pass_time(self, seconds: float) -> None:
        held_now = list(self.held_now().values())
        self.clock.seconds += seconds
        self.active_s += seconds if held_now else 0.0
        self.followers_cost_s += seconds * held_now.count("FOLLOW")

    def drain_pod(self) -> None:
        pod = self.random.choice(self.pods)
        self.write(lambda session: pods.set_state(session, pod, PodState.DRAINING))

    def scale(self) -> None:
        self.scale_to(self.random.randint(1, self.most_teams))

    def scale_to(self, teams: int) -> None:
        self.max_teams = teams
        self.change(
            job_pb2.JobSpec(pod=job_pb2.PodShape(min_count=1, max_count=self.max_teams)),
            ("pod.max_count",),
        )
        self.done["scaled"] += 1

    def suspend_or_resume(self) -> None:
        self.suspended = not self.suspended
        self.change(job_pb2.JobSpec(), (), self.suspended)

    def change(
        self, spec: job_pb2.JobSpec, paths: tuple[str, ...], suspend: bool | None = None
    ) -> None:
        wanted = job_changes.JobChange(spec, paths, suspend)
        now = self.clock.now()
        self.write(
            lambda session: job_changes.change(
                session, jobs.get_by_uid(session, self.uid), wanted, now
            )
        )

    def restart_learner(self) -> None:
        self.instances[self.random.choice(self.pods)] = uuid.uuid4().hex

    def lose_pod(self) -> None:
        pod = self.random.choice(self.pods)
        self.run(self.operations.lose_pod(pod, None, "its process died"))
        for held in self.held:
            held.ended = held.ended or held.pod == pod

    def kill_orchestrator(self) -> None:
        since = self.write(lambda session: jobs.get_by_uid(session, self.uid).active_since)
        # not stored yet
        self.active_s -= (self.clock.now() - since).total_seconds() if since is not None else 0.0
        self.followers_cost_s -= self.write(self.not_counted_s)
        self.run(self.database.close())
        self.open()
        held_now = self.held_now()
        for held in self.held:
            if held.lease.fence in held_now:
                assert not held.ended
                # a full term after a restart, also for an overdue one
                held.deadline = self.clock.seconds + TERM_S
        self.done["killed"] += 1

    def check(self) -> None:
        """The database says what the model says."""

        def read(session: Session) -> tuple[JobRow, float, float, int, list[str]]:
            job = jobs.get_by_uid(session, self.uid)
            challenged = select(WorkRow.checkpoint).where(
                WorkRow.checkpoint.is_not(None), WorkRow.state != WorkState.DROPPED
            )
            active_s = leases.active_time_s(job, self.clock.now())
            steps = sum(session.scalars(select(MemberRow.env_steps)))
            return (
                job,
                active_s,
                job.cost_s + self.not_counted_s(session),
                steps,
                list(session.scalars(challenged)),
            )

        job, active_s, cost_s, of_members, challenged = self.run(self.transactions.read(read))
        steps = job.env_steps
        assert steps == of_members == sum(self.counted.values())
        assert steps >= self.seen_steps
        self.seen_steps = steps
        assert self.fences == sorted(set(self.fences))
        assert cost_s == pytest.approx(
            steps * 0.001 + self.challenges_cost_s + self.followers_cost_s
        )
        assert job.evaluation_cost_s == pytest.approx(self.challenges_cost_s)
        assert active_s == pytest.approx(self.active_s)
        assert (job.active_since is not None) == bool(self.held_now())
        assert len(challenged) == len(set(challenged)), "no checkpoint is challenged twice"
        self.check_teams()

    def check_teams(self) -> None:
        """Every follower that holds a lease has a lead that does, and a rank of its own there."""
        columns = select(LeaseRow.lead_fence, LeaseRow.rank).where(
            LeaseRow.state == LeaseState.HELD
        )
        query = columns.where(LeaseRow.kind == "FOLLOW")
        places = self.run(
            self.transactions.read(lambda session: [tuple(row) for row in session.execute(query)])
        )
        held_now = self.held_now()
        assert all(held_now.get(lead) == "TRAIN" for lead, _ in places)
        assert len(places) == len(set(places))
        assert {rank for _, rank in places} <= set(range(1, self.learners))

    def set_followers_free(self) -> None:
        """With a lead's lease, however it ended, those of its followers have ended."""
        query = select(LeaseRow.fence, LeaseRow.state)
        read = self.transactions.read(
            lambda session: {row.fence: row.state for row in session.execute(query)}
        )
        states = self.run(read)
        for held in self.held:
            if held.follows and not held.ended and states[held.follows] != LeaseState.HELD:
                assert states[held.lease.fence] != LeaseState.HELD
                held.ended, held.released = True, states[held.lease.fence] == LeaseState.RELEASED
                self.done["set free"] += held.released

    def not_counted_s(self, session: Session) -> float:
        """What followers have cost since that was counted last."""
        query = select(LeaseRow.cost_since).where(LeaseRow.cost_since.is_not(None))
        return sum((self.clock.now() - since).total_seconds() for since in session.scalars(query))

    def is_too_much(self, held_now: dict[int, str]) -> bool:
        leads = list(held_now.values()).count("TRAIN")
        return leads > self.max_teams or len(held_now) > self.max_teams * self.learners

    def end(self) -> None:
        """The leaderboard has heard of every completed round once, and was asked once for each
        cohort."""
        self.board.loses_answers = 0
        self.run(self.delivery.flush("projects/default/leaderboards/j"))
        completed = [
            held for held in self.held if held.completed and not held.evaluates and not held.follows
        ]
        # Works that were lost too often are reported as failed, besides.
        rounds = [request for request in self.board.submissions.values() if not request.failure]
        assert len(rounds) == sum(len(held.agents) for held in completed)
        assert sum(request.env_steps for request in rounds) == sum(
            self.counted[agent.name] for held in completed for agent in held.agents
        )
        heard = {
            each.evaluation_id
            for each in self.board.evaluations.values()
            if each.purpose == CHALLENGE
        }
        challenges = [
            held.result.evaluation for held in self.held if held.completed and held.evaluates
        ]
        assert heard == {each.evaluation_id for each in challenges}
        works = self.run(
            self.transactions.read(lambda session: set(session.scalars(select(WorkRow.id))))
        )
        assert set(self.board.proposals) <= works
        self.run(self.database.close())
        self.loop.close()

    def open(self) -> None:
        changes = ChangeFeed()
        migrations = "podracer_orchestrator.migrations"
        self.database = open_database(
            new_database(self.folder / "o.sqlite", migrations), migrations
        )
        after_change = functools.partial(ending.after_change, clock=self.clock)
        self.transactions = Transactions(self.database, changes, after_change)
        self.deadlines = LeaseDeadlines(self.clock, TERM_S)
        self.operations = LeaseOperations(
            self.transactions, self.deadlines, self.store, changes, self.clock
        )
        self.delivery = Delivery(self.transactions, self.board, changes, self.clock)
        tokens = LeaseTokens(b"s" * 32)
        proposer = CohortProposer(self.transactions, self.delivery, self.clock)
        self.dispatcher = Dispatcher(
            self.transactions, self.deadlines, tokens, proposer, changes, self.clock
        )
        self.run(self.operations.recover())

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def write(self, operation):
        return self.run(self.transactions.write(operation))

    def held_now(self) -> dict[int, str]:
        """Kind of work by fence, of the leases that are held in the database."""
        query = select(LeaseRow.fence, LeaseRow.kind).where(LeaseRow.state == LeaseState.HELD)
        return self.run(
            self.transactions.read(
                lambda session: {row.fence: row.kind for row in session.execute(query)}
            )
        )

    def pick(self) -> Held:
        """A lease that lives, or any, so that zombies have their say too."""
        living = [held for held in self.held if self.alive(held)]
        return self.random.choice(living if living and self.random.random() < 0.7 else self.held)

    def alive(self, held: Held) -> bool:
        return not held.ended and self.clock.seconds < held.deadline

    def attempt(self, held: Held, call):
        """Make a call that must succeed exactly while the lease lives. What it answers, True for
        nothing, or None."""
        if self.alive(held):
            answer = self.run(call)
            return True if answer is None else answer
        with pytest.raises(Fenced):
            self.run(call)
        return None

    def count(self, held: Held, steps: int) -> None:
        for agent in held.agents:
            self.counted[agent.name] = max(self.counted[agent.name], held.base[agent.name] + steps)

    def member(
        self, held: Held, agent: agent_pb2.AgentSpec, steps: int
    ) -> pod_pb2.MemberCheckpoint:
        total = agent.env_steps + steps
        prefix = checkpoint_prefix(
            "default", held.lease.job_uid, agent.name.rpartition("/")[2], total, held.lease.fence
        )
        manifest = Manifest((), {"agent": agent.name, "steps": total}, {}).to_json()
        self.store.put(f"{prefix}{FILE_NAME}", manifest)
        sha256 = ManifestFile.describe(FILE_NAME, manifest).sha256
        return pod_pb2.MemberCheckpoint(
            progress=pod_pb2.MemberProgress(
                agent=agent.name, env_steps=steps, cost=seconds_to_duration(steps * 0.001)
            ),
            checkpoint=agent_pb2.CheckpointReference(
                prefix=prefix, manifest_sha256=sha256, env_steps=total, fence=held.lease.fence
            ),
        )

    def train_result(self, held: Held) -> pod_pb2.TrainResult:
        result = pod_pb2.TrainResult()
        for agent in held.agents:
            member = result.members.add(final=self.member(held, agent, held.steps))
            if self.random.random() < 0.5:
                score = self.random.uniform(0.0, 1.5 * TARGET)
                candidate = _evaluation(f"{held.lease.fence}-{agent.name}", score, range(32))
                candidate.agent, candidate.purpose = (
                    agent.name,
                    agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
                )
                candidate.checkpoint.CopyFrom(member.final.checkpoint)
                member.candidate.CopyFrom(candidate)
        return result

    def challenge_result(self, held: Held) -> pod_pb2.EvaluateResult:
        """It never reaches the target, or the history would end."""
        work = held.lease.evaluate
        (policy,) = work.policies
        evaluation = _evaluation(
            f"{held.lease.fence}-1", self.random.uniform(0.0, 0.9 * TARGET), work.seeds
        )
        evaluation.agent, evaluation.purpose = policy.agent, work.purpose
        evaluation.checkpoint.CopyFrom(policy.checkpoint)
        cost = seconds_to_duration(self.random.randint(1, 50) / 1000)
        return pod_pb2.EvaluateResult(evaluation=evaluation, cost=cost)


def _evaluation(evaluation_id: str, score: float, seeds) -> agent_pb2.Evaluation:
    count = len(seeds)
    return agent_pb2.Evaluation(
        evaluation_id=evaluation_id,
        returns=[score] * count,
        lengths=[1] * count,
        seeds=seeds,
        mean=score,
        lower_bound=score,
        upper_bound=score,
    )
