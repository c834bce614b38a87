"""Several jobs on a few pods: each has device seconds by its weight. Time is simulated, nothing
trains."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
import uuid

import pytest

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.storage.layout import checkpoint_prefix
from podracer_core.storage.manifest import FILE_NAME, Manifest, ManifestFile
from podracer_orchestrator.api import job_changes
from podracer_orchestrator.board.delivery import Delivery
from podracer_orchestrator.board.requests import CohortProposer
from podracer_orchestrator.dispatch.capabilities import Capabilities
from podracer_orchestrator.dispatch.dispatcher import Ask, Dispatcher
from podracer_orchestrator.dispatch.lease_operations import LeaseOperations
from podracer_orchestrator.dispatch.renewals import actions
from podracer_orchestrator.jobs import jobs, submission
from podracer_orchestrator.jobs.plan import PodKind
from podracer_orchestrator.leases import followers, leases
from podracer_orchestrator.leases.deadlines import LeaseDeadlines
from podracer_orchestrator.leases.leases import Holder
from podracer_orchestrator.outcomes import ending
from podracer_orchestrator.pool import pods, reconciler
from podracer_orchestrator.pool.backend import Capacity, PoolBackend, StaticPool
from podracer_orchestrator.pool.capacity import capacity_message
from podracer_orchestrator.pool.pods import PodReport
from podracer_orchestrator.pool.reconciler import PoolReconciler
from podracer_orchestrator.pool.shares import PoolShares
from podracer_orchestrator.transactions import ChangeFeed, Transactions
from podracer_platform.database import open_database
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.rpc.tokens import LeaseTokens
from podracer_platform.storage import open_store
from support.manual_clock import ManualClock
from support.new_database import new_database

GIB = 1 << 30
UNLIMITED = evolution_pb2.Objective(max_env_steps=10**9)


class Board:
    """A leaderboard that has fresh agents for everybody."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)

    async def propose(self, request):
        response = leaderboard_pb2.ProposeCohortResponse(round_env_steps=100)
        agent = response.proposals.add(action=leaderboard_pb2.PROPOSAL_ACTION_FRESH).agent
        agent.name = (
            f"{request.leaderboard.replace('leaderboards', 'jobs')}/agents/a{next(self.numbers)}"
        )
        agent.algorithm = "ppo"
        return response

    async def exchange(self, name, steps):
        return [
            leaderboard_pb2.ExchangeResponse.Answer(cohort=await self.propose(each.cohort))
            for each in steps
        ]

    async def call(self, method, request):
        return leaderboard_pb2.SubmitCandidateResponse()


class Machine(PoolBackend):
    """A backend whose pods are names; what it has is what the test says."""

    name = "local"

    def __init__(self, capacity: Capacity) -> None:
        self.has = capacity
        self.pods: list[str] = []

    @property
    def capacity(self) -> Capacity:
        return self.has

    async def reconcile(self, wanted):
        self.pods = [plan.name for plan in wanted]

    async def stop(self):
        self.pods = []


class World:
    """An orchestrator without servers, and pods whose rounds take as long as the test says."""

    def __init__(self, folder, backend: PoolBackend) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock, changes = ManualClock(), ChangeFeed()
        self.store = open_store(f"file://{folder}/store")
        migrations = "podracer_orchestrator.migrations"
        self.database = open_database(new_database(folder / "o.sqlite", migrations), migrations)
        after_change = functools.partial(ending.after_change, clock=self.clock)
        self.transactions = Transactions(self.database, changes, after_change)
        deadlines = LeaseDeadlines(self.clock, 1e6)
        self.operations = LeaseOperations(
            self.transactions, deadlines, self.store, changes, self.clock
        )
        board = Board()
        delivery = Delivery(self.transactions, board, changes, self.clock)
        proposer = CohortProposer(self.transactions, delivery, self.clock)
        self.shares = PoolShares(self.clock)
        tokens = LeaseTokens(b"s" * 32)
        self.dispatcher = Dispatcher(
            self.transactions, deadlines, tokens, proposer, changes, self.clock, self.shares
        )
        self.backend = backend
        self.pool = PoolReconciler(
            self.transactions, self.operations.lose_pod, self.shares, changes, self.clock
        )
        self.run(self.pool.adopt(backend))
        # end, …, pod, lease, seconds
        self.working: list[tuple[float, int, str, pod_pb2.Lease, float]] = []
        self.following: dict[str, int] = {}  # pod: the fence of the lead that it follows
        self.numbers = itertools.count()

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def write(self, operation):
        return self.run(self.transactions.write(operation))

    def close(self) -> None:
        self.run(self.database.close())
        self.loop.close()

    def create(
        self, name: str, weight: float = 1.0, project: str = "default", objective=UNLIMITED, **pod
    ) -> str:
        spec = submission.checked(
            job_pb2.JobSpec(
                display_name=name,
                environment=environment_pb2.EnvironmentSpec(id="CartPole-v1"),
                objective=objective,
                evolution=evolution_pb2.Evolution(population=8, leaderboard_size=2),
                pod=job_pb2.PodShape(members=1, **pod),
                weight=weight,
            )
        )
        new = jobs.NewJob(project, name, spec, submission.known_description(spec))
        return self.write(lambda session: jobs.create(session, new, self.clock.now()).uid)

    def change(self, uid: str, *paths: str, suspend: bool | None = None, **values) -> None:
        wanted = job_changes.JobChange(job_pb2.JobSpec(**values), paths, suspend)
        self.write(
            lambda session: job_changes.change(
                session, jobs.get_by_uid(session, uid), wanted, self.clock.now()
            )
        )

    def used(self) -> dict[str, float]:
        """Device seconds of each job, by its id."""
        return self.write(
            lambda session: {
                job.job_id: job.cost_s for job in jobs.in_states(session, jobs.JobState)
            }
        )

    def lease(self, pod: str, round_s: dict[str, float]) -> pod_pb2.Lease | None:
        ask = Ask(
            PodReport(pod, "first", "FUSED", f"{pod}:7000", b""),
            uuid.uuid4().hex,
            Capabilities(can_fuse=True),
        )
        lease = self.run(self.dispatcher.lease(ask, 0.0))
        if lease is not None and lease.HasField("follow"):
            self.following[pod] = lease.follow.lead_fence
        if lease is not None and lease.HasField("train"):
            seconds = round_s.get(lease.job.rpartition("/")[2], 1.0)
            heapq.heappush(
                self.working,
                (self.clock.seconds + seconds, next(self.numbers), pod, lease, seconds),
            )
        return lease

    def complete(self, lease: pod_pb2.Lease, seconds: float) -> None:
        (agent,) = lease.train.cohort.members
        steps = agent.env_steps + 100
        prefix = checkpoint_prefix(
            "default", lease.job_uid, agent.name.rpartition("/")[2], steps, lease.fence
        )
        manifest = Manifest((), {}, {}).to_json()
        self.store.put(f"{prefix}{FILE_NAME}", manifest)
        sha256 = ManifestFile.describe(FILE_NAME, manifest).sha256
        progress = pod_pb2.MemberProgress(
            agent=agent.name, env_steps=100, cost=seconds_to_duration(seconds)
        )
        final = pod_pb2.MemberCheckpoint(
            progress=progress,
            checkpoint=agent_pb2.CheckpointReference(prefix=prefix, manifest_sha256=sha256),
        )
        result = pod_pb2.TrainResult(members=[pod_pb2.MemberResult(final=final)])
        self.run(
            self.operations.complete(Holder(lease.name.rpartition("/")[2], lease.fence), result)
        )

    def go(self, seconds: float, pods: list[str], round_s: dict[str, float] | None = None) -> None:
        """Let `pods` work; each asks again as soon as its round is over."""
        end = self.clock.seconds + seconds
        busy = {pod for _, _, pod, _, _ in self.working} | self.following.keys()
        for pod in pods:
            if pod not in busy:
                self.lease(pod, round_s or {})
        while self.working and self.working[0][0] <= end:
            self.clock.seconds, _, pod, lease, took = heapq.heappop(self.working)
            self.complete(lease, took)
            team = [each for each, fence in self.following.items() if fence == lease.fence]
            for each in [pod, *team]:
                self.following.pop(each, None)
            for each in [pod, *team]:
                self.lease(each, round_s or {})
        self.clock.seconds = max(end, self.clock.seconds)


STATIC = [f"projects/default/pods/p{index}" for index in range(3)]


@pytest.fixture
def make_world(tmp_path):
    worlds = []

    def make(backend: PoolBackend | None = None) -> World:
        worlds.append(World(tmp_path, backend or StaticPool()))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.mark.parametrize(
    ("backend", "count"), [("static", 1), ("static", 2), ("local", 1), ("local", 3)]
)
def test_two_jobs_share_by_weight(make_world, backend, count):
    cores = Capacity(cores=count, memory_bytes=64 * GIB, available_bytes=60 * GIB, max_pods=64)
    world = make_world(Machine(cores) if backend == "local" else None)
    world.create("a", weight=2.0, max_count=3)
    world.create("b", weight=1.0, max_count=3)
    pods = STATIC[:count]
    if backend == "local":
        world.run(world.pool.reconcile())
        pods = world.backend.pods
        assert pods == [f"projects/default/pods/fused-{index}" for index in range(count)]
    world.go(45.0 / count, pods, {"a": 1.5, "b": 1.0})
    used = world.used()
    assert used["a"] / used["b"] == pytest.approx(2.0, rel=0.15)


def test_a_third_that_joins_and_one_that_pauses(make_world):
    world = make_world()
    first = world.create("a", weight=2.0, max_count=3)
    world.create("b", max_count=3)

    def go(seconds: float) -> list[float]:
        before = world.used()
        world.go(seconds, STATIC[:2])
        return [used - before.get(job, 0.0) for job, used in sorted(world.used().items())]

    go(6.0)
    world.create("c", max_count=3)
    since = go(16.0)
    assert [used / sum(since) for used in since] == pytest.approx([0.5, 0.25, 0.25], abs=0.07)
    world.change(first, suspend=True)
    go(1.0)
    paused, second, third = go(8.0)
    assert paused == 0.0
    assert second == pytest.approx(third, abs=2.0)
    world.change(first, suspend=False)
    resumed, second, third = go(10.0)
    assert resumed == pytest.approx(10.0, abs=2.0)  # half of two pods: nothing is made up for
    assert min(second, third) > 0.0


def test_no_more_leases_than_the_job_wants_pods_and_the_newest_goes_when_it_wants_fewer(make_world):
    world = make_world()
    uid = world.create("a", max_count=2)
    held = [world.lease(pod, {}) for pod in STATIC]
    assert [lease is not None for lease in held] == [True, True, False]
    world.change(uid, "pod.max_count", pod=job_pb2.PodShape(max_count=1))

    def action(session, lease):
        return actions(session, lease.job_uid, world.clock.now())[lease.fence]

    found = [world.write(lambda session, lease=lease: action(session, lease)) for lease in held[:2]]
    assert found == [pod_pb2.LEASE_ACTION_CONTINUE, pod_pb2.LEASE_ACTION_RELEASE]
    world.change(uid, "pod.max_count", pod=job_pb2.PodShape(max_count=3))
    assert world.lease(STATIC[2], {}) is not None


def test_a_pod_that_drains_gets_nothing_more_when_it_hands_its_lease_back(make_world):
    world = make_world(Machine(Capacity(2.0, 64 * GIB, 64, available_bytes=60 * GIB)))
    uid = world.create("a", max_count=2)
    world.run(world.pool.reconcile())
    first, second = world.backend.pods
    world.lease(first, {})
    lease = world.lease(second, {})
    world.change(uid, "pod.max_count", pod=job_pb2.PodShape(max_count=1))
    world.run(world.pool.reconcile())
    assert world.backend.pods == [first]
    world.run(
        world.operations.release(
            Holder(lease.name.rpartition("/")[2], lease.fence), cohort_pb2.Problem()
        )
    )
    assert world.lease(second, {}).HasField("exit")
    world.change(uid, "pod.max_count", pod=job_pb2.PodShape(max_count=2))
    world.run(world.pool.reconcile())
    # number 1 is still on its way out
    assert world.backend.pods == ["projects/default/pods/fused-2", first]


def test_a_pod_serves_one_project(make_world):
    """Static ones that of their name, those of the pool the one that they were made for."""
    world = make_world(Machine(Capacity(4.0, 64 * GIB, 64, available_bytes=60 * GIB)))
    world.create("a", project="other")
    world.run(world.pool.reconcile())
    theirs = list(world.backend.pods)
    assert theirs
    assert [world.lease(pod, {}) for pod in (STATIC[0], "projects/default/pods/fused-9")] == [
        None
    ] * 2
    assert {world.lease(pod, {}).job for pod in theirs} == {"projects/other/jobs/a"}
    world.create("b")
    assert world.lease(STATIC[0], {}).job == "projects/default/jobs/b"


def test_kinds_that_do_not_fit_together_take_turns(make_world):
    """A machine with room for one pod, a fused and a split job: neither waits for the end of the
    other."""
    world = make_world(Machine(Capacity(1.0, 64 * GIB, 1, available_bytes=60 * GIB)))
    world.create("a")
    world.create("b", layout=job_pb2.POD_LAYOUT_SPLIT)
    for _ in range(30):
        world.run(world.pool.reconcile())
        for name in world.write(
            lambda session: [pod.name for pod in reconciler.pods.of_backend(session, "local")]
        ):
            if name not in world.backend.pods and name not in {
                pod for _, _, pod, _, _ in world.working
            }:
                world.run(world.pool.pod_stopped(name))
        world.go(10.0, world.backend.pods, {"a": 10.0, "b": 10.0})
    used = world.used()
    assert used["a"] == pytest.approx(used["b"], abs=2 * 30.0 + 20.0)
    assert min(used.values()) > 60.0


def test_short_memory_drains_the_newest_first_and_never_the_last(make_world):
    world = make_world(Machine(Capacity(8.0, 16 * GIB, 64, available_bytes=12 * GIB)))
    world.create("a", max_count=3)
    for name in ("fused-0", "fused-1", "fused-2"):
        world.run(world.pool.reconcile())
        assert f"projects/default/pods/{name}" in world.backend.pods
    left = []
    for _ in range(12):
        world.backend.has = Capacity(8.0, 16 * GIB, 64, available_bytes=GIB // 4)
        before = set(world.backend.pods)
        world.run(world.pool.reconcile())
        for name in before - set(world.backend.pods):
            world.run(world.pool.pod_stopped(name))
        left.append([name.rpartition("/")[2] for name in world.backend.pods])
        world.clock.seconds += 2.0
    assert [names for names, _ in itertools.groupby(left)] == [["fused-0", "fused-1"], ["fused-0"]]
    world.backend.has = Capacity(8.0, 16 * GIB, 64, available_bytes=12 * GIB)
    world.run(world.pool.reconcile())
    assert len(world.backend.pods) == 1  # not at once: it would swing to and fro
    world.clock.seconds += 60.0
    world.run(world.pool.reconcile())
    assert len(world.backend.pods) == 3


def test_a_job_that_wants_more_gpus_than_there_are_fails_and_another_waits_for_its_turn(make_world):
    world = make_world(
        Machine(Capacity(8.0, 16 * GIB, 64, available_bytes=12 * GIB, gpus=2, usable_gpus=1))
    )
    asking = [
        world.create(f"g{count}", resources=job_pb2.Resources(gpu=count)) for count in (3, 2, 1)
    ]
    world.run(world.pool.reconcile())
    assert world.backend.pods == ["projects/default/pods/fused-gpu1-0"]
    found = world.write(lambda session: [jobs.get_by_uid(session, uid) for uid in asking])
    assert [job.state for job in found] == ["FAILED", "PENDING", "PENDING"]
    limit = world.write(lambda session: capacity_message(session, world.shares, "default")).limit
    assert limit == "GPUs: 0 of 1 free, a pod needs 2"


def test_capacity_of_a_machine_and_of_pods_that_come_by_themselves(make_world, tmp_path):
    world = make_world(
        Machine(Capacity(2.0, 16 * GIB, 64, used_cores=0.5, available_bytes=12 * GIB))
    )
    world.create("a", weight=2.0, max_count=4)
    world.run(world.pool.reconcile())
    world.go(3.0, world.backend.pods)
    found = world.write(lambda session: capacity_message(session, world.shares, "default"))
    assert (found.backend, found.pod_count, found.free_pod_count) == ("local", 2, 0)
    assert found.limit == "cores: 0 of 2 free, a pod needs 1"
    assert (found.total.cpu, found.reserved.cpu, found.used.cpu) == (2.0, 2.0, 0.5)
    assert found.used.memory_bytes == 4 * GIB
    assert found.reserved.memory_bytes == 2 * PodKind().memory_bytes
    (share,) = found.shares
    assert (share.job, share.weight, share.pod_count) == ("projects/default/jobs/a", 2.0, 2)
    assert (share.wanted_count, share.min_count, share.max_count) == (2, 1, 4)
    assert math.isclose(share.used.ToTimedelta().total_seconds(), sum(world.used().values()))


def test_capacity_where_pods_come_by_themselves(make_world):
    world = make_world()
    world.create("a", max_count=4)
    world.create("b", max_count=4)
    for pod in STATIC:
        world.lease(pod, {})
    found = world.write(lambda session: capacity_message(session, world.shares, "default"))
    assert (found.backend, found.pod_count, found.free_pod_count) == ("static", 3, -1)
    assert not found.HasField("total")
    assert not found.HasField("used")
    assert "this server starts none" in found.limit
    assert sorted(share.wanted_count for share in found.shares) == [1, 2]


def test_a_job_with_several_learners_pays_for_all_of_them(make_world):
    """Of two jobs of equal weight the one that trains an agent with two pods has as many device
    seconds, not twice."""
    world = make_world()
    world.create("a", max_count=2, learners=2)
    world.create("b", max_count=3)
    world.go(30.0, STATIC, {"a": 1.5, "b": 1.0})
    used = world.used()
    assert used["a"] == pytest.approx(used["b"], rel=0.2)
    assert sum(used.values()) == pytest.approx(3 * 30.0, rel=0.1)


def test_the_cost_of_followers_counts_once_by_the_clock(make_world):
    world = make_world()
    uid = world.create("a", max_count=1, learners=3)
    lead = world.lease(STATIC[0], {"a": 10.0})
    world.clock.seconds += 1.0
    assert world.lease(STATIC[1], {}).follow.rank == 1
    world.clock.seconds += 2.0
    late = world.lease(STATIC[2], {})
    world.write(lambda session: followers.count_costs(session, world.clock.now()))
    assert world.used() == {"a": 2.0}
    world.run(
        world.operations.release(
            Holder(late.name.rpartition("/")[2], late.fence), cohort_pb2.Problem()
        )
    )
    world.clock.seconds += 7.0
    world.complete(lead, 10.0)
    assert world.used() == {"a": 10.0 + 9.0 + 0.0}
    world.clock.seconds += 100.0
    world.write(lambda session: followers.count_costs(session, world.clock.now()))
    assert world.used() == {"a": 19.0}, "no pod follows any more"
    taken = world.write(
        lambda session: leases.usage(session, jobs.get_by_uid(session, uid), world.clock.now())
    )
    assert (taken.reserved_cost_s, taken.reserved_env_steps) == (0.0, 0)


def test_who_has_followed_for_long_is_not_taken_for_a_silent_pod(make_world):
    world = make_world()
    world.create("a", max_count=1, learners=2)
    lead = world.lease(STATIC[0], {"a": 600.0})
    world.lease(STATIC[1], {})
    world.clock.seconds += 600.0
    world.complete(lead, 600.0)
    world.clock.seconds += 3.0  # it hears of it by its next renewal
    silent = world.write(
        lambda session: [pod.name for pod in pods.silent(session, world.clock.now())]
    )
    assert silent == []


def test_a_follower_comes_only_where_the_rest_of_the_budget_pays_for_it(make_world):
    world = make_world()
    budget = evolution_pb2.Objective(max_cost=seconds_to_duration(100.0))
    world.create("a", max_count=1, learners=3, objective=budget)
    lead = world.lease(STATIC[0], {})
    limit_s = lead.train.budget.cost.ToTimedelta().total_seconds()
    assert limit_s == pytest.approx(100.0 / 3, abs=1.0), (
        "of what is left each learner of the team has its part"
    )
    world.clock.seconds += 10.0
    assert world.lease(STATIC[1], {}).HasField("follow")
    assert world.lease(STATIC[2], {}).HasField("follow")
    world.clock.seconds += limit_s - 10.0
    world.complete(lead, limit_s)
    assert world.used()["a"] == pytest.approx(100.0 - 2 * 10.0)


def test_the_pool_grows_by_a_team_and_drains_followers_first(make_world):
    world = make_world(Machine(Capacity(4.0, 64 * GIB, 64, available_bytes=60 * GIB)))
    world.create("a", max_count=2, learners=3)
    world.run(world.pool.reconcile())
    assert len(world.backend.pods) == 4
    found = world.write(lambda session: capacity_message(session, world.shares, "default"))
    (share,) = found.shares
    assert (share.wanted_count, share.min_count, share.max_count) == (4, 1, 6)
    assert found.limit == "cores: 0 of 4 free, a pod needs 1"
    kinds = {pod: world.lease(pod, {}).WhichOneof("work") for pod in world.backend.pods}
    assert sorted(kinds.values()) == ["follow", "follow", "train", "train"]
    world.backend.has = Capacity(3.0, 64 * GIB, 64, available_bytes=60 * GIB)
    world.run(world.pool.reconcile())
    (drained,) = kinds.keys() - set(world.backend.pods)
    assert kinds[drained] == "follow"


def test_a_job_whose_team_never_fits_into_the_machine_fails_and_says_what_would(make_world):
    world = make_world(
        Machine(Capacity(2.0, 64 * GIB, 64, available_bytes=60 * GIB, gpus=1, usable_gpus=1))
    )
    resources = [job_pb2.Resources(), job_pb2.Resources(cpu=0.5), job_pb2.Resources(cpu=0.5, gpu=1)]
    created = [
        world.create(f"j{number}", learners=3, resources=each)
        for number, each in enumerate(resources)
    ]
    world.run(world.pool.reconcile())
    found = world.write(lambda session: [jobs.get_by_uid(session, uid) for uid in created])
    assert [job.state for job in found] == ["FAILED", "PENDING", "FAILED"]
    told = [cohort_pb2.Problem.FromString(job.problem) for job in (found[0], found[2])]
    assert [problem.reason for problem in told] == ["POOL_TOO_SMALL"] * 2
    assert told[0].message == (
        "pod.learners: 3 learners of an agent need as many pods at once, and this machine has room "
        "for 2 (cores: 0 of 2 free, a pod needs 1): expected at most 2, or less for each in "
        "pod.resources"
    )
    assert "room for 1 (GPUs: 0 of 1 free, a pod needs 1)" in told[1].message
