"""A real orchestrator on port 0 with a real database, beside a leaderboard and learners that are
played."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2_grpc
from podracer.orchestrator.v1 import (
    artifact_service_pb2,
    artifact_service_pb2_grpc,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    pod_service_pb2_grpc,
)
from podracer.orchestrator.v1 import pod_service_pb2 as pod_pb2
from podracer_core.errors import NotFound, PodracerError, PreconditionFailed, Unavailable
from podracer_core.storage import FILE_NAME, Manifest, ManifestFile, ObjectStore, checkpoint_prefix
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.server import OrchestratorServer, create_server
from podracer_platform.rpc import (
    AioRpcServer,
    Authorizer,
    FileToken,
    Role,
    TokenFiles,
    bearer,
    create_aio_server,
    create_tokens,
    open_aio_channel,
)
from podracer_platform.storage import open_store
from support.new_database import new_database


class FakeLeaderboard(leaderboard_service_pb2_grpc.LeaderboardServiceServicer):
    """Remembers what it hears; proposes fresh agents, the same answer to the same request id."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.proposals: dict[str, leaderboard_pb2.ProposeCohortResponse] = {}
        self.submissions: dict[str, leaderboard_pb2.SubmitCandidateRequest] = {}
        self.evaluations: dict[str, agent_pb2.Evaluation] = {}
        self.boards: dict[str, leaderboard_pb2.LeaderboardSpec] = {}
        self.candidates: list[leaderboard_pb2.Candidate] = []
        self.alias_changes: list[leaderboard_pb2.AliasChange] = []
        self.retired: set[str] = set()
        self.goes_after_a_check = False
        """Whether it is away once it has answered a ForkAgent that only asked."""
        self.forks: dict[str, leaderboard_pb2.Agent] = {}
        self.pinned: set[str] = set()
        self.stopped: set[str] = set()
        self.hears_claims = False
        """Whether every candidate that is submitted claims the first place."""
        self.exclusions: list[leaderboard_pb2.Exclusion] = []
        """The agents that cannot be first, as every answer says."""
        self.algorithm = "ppo"
        self.round_env_steps = 0
        self.round_time_s = 15.0
        self.is_away = False
        self.has_nothing = False
        self.parent: agent_pb2.Parent | None = None
        """What every new agent starts from."""
        self.is_over = False
        self.generator_problem: cohort_pb2.Problem | None = None
        self.admission_score: float | None = None
        self.refusal: PodracerError | None = None
        self._numbers = itertools.count(1)

    async def CreateLeaderboard(self, request, context):
        self._hear(request)
        self.boards[request.name] = request.spec
        return leaderboard_pb2.CreateLeaderboardResponse()

    async def DeleteLeaderboard(self, request, context):
        self._hear(request)
        self.boards.pop(request.name, None)
        return leaderboard_pb2.DeleteLeaderboardResponse()

    async def ProposeCohort(self, request, context):
        self._hear(request)
        if request.request_id in self.proposals:
            return self.proposals[request.request_id]
        response = leaderboard_pb2.ProposeCohortResponse(
            round_env_steps=self.round_env_steps, admission_score=self.admission_score
        )
        if not self.round_env_steps:
            response.round_time.FromNanoseconds(int(self.round_time_s * 1e9))
        response.finished = self.is_over
        if self.generator_problem is not None:
            response.generator_problem.CopyFrom(self.generator_problem)
        job = self.boards[request.leaderboard].job
        for _ in range(0 if self.has_nothing else request.places):
            agent = response.proposals.add(action=leaderboard_pb2.PROPOSAL_ACTION_FRESH).agent
            agent.name = f"{job}/agents/a{next(self._numbers):04}"
            agent.algorithm = request.algorithms[0] if request.algorithms else self.algorithm
            agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_FRESH
            if self.parent is not None:
                agent.initialization.kind = agent_pb2.INITIALIZATION_KIND_COPY
                agent.initialization.parents.append(self.parent)
        self.proposals[request.request_id] = response
        return response

    async def SubmitCandidate(self, request, context):
        self._hear(request)
        self.submissions.setdefault(request.request_id, request)
        has_candidate = request.HasField("candidate")
        challenge = has_candidate and self.hears_claims
        return leaderboard_pb2.SubmitCandidateResponse(
            admitted=has_candidate, rank=1, challenge=challenge, exclusions=self.exclusions
        )

    async def GetLeaderboard(self, request, context):
        self._hear(request)
        board = leaderboard_pb2.Leaderboard(name=request.name, candidates=self.candidates)
        return leaderboard_pb2.GetLeaderboardResponse(leaderboard=board)

    async def GetAgent(self, request, context):
        self._hear(request)
        return leaderboard_pb2.GetAgentResponse(agent=self._agent(request.name))

    async def ForkAgent(self, request, context):
        self._hear(request)
        parent = self._agent(request.name)
        if request.request_id in self.forks:
            return leaderboard_pb2.ForkAgentResponse(agent=self.forks[request.request_id])
        if not parent.HasField("best_evaluation"):
            raise PreconditionFailed("no checkpoint yet", reason="NO_CHECKPOINT")
        fork = leaderboard_pb2.Agent(parents=[parent.name])
        fork.spec.initialization.parents.add(
            agent=parent.name, checkpoint=parent.best_evaluation.checkpoint
        )
        self.is_away |= self.goes_after_a_check
        if not request.validate_only:
            fork.name = f"{parent.name.rpartition('/')[0]}/a{next(self._numbers):04}"
            self.forks[request.request_id] = fork
        return leaderboard_pb2.ForkAgentResponse(agent=fork)

    async def PinAgent(self, request, context):
        self._hear(request)
        (self.pinned.discard if request.unpin else self.pinned.add)(request.name)
        return leaderboard_pb2.PinAgentResponse()

    async def StopAgent(self, request, context):
        self._hear(request)
        self.stopped.add(request.name)
        return leaderboard_pb2.StopAgentResponse()

    async def ListAgents(self, request, context):
        self._hear(request)
        return leaderboard_pb2.ListAgentsResponse(agents=self._agents().values())

    def _agent(self, name: str) -> leaderboard_pb2.Agent:
        agents = self._agents()
        if name not in agents:
            raise NotFound(f"there is no agent {name}")
        return agents[name]

    def _agents(self) -> dict[str, leaderboard_pb2.Agent]:
        agents: dict[str, leaderboard_pb2.Agent] = {}
        for proposal in (
            each for response in self.proposals.values() for each in response.proposals
        ):
            agents[proposal.agent.name] = leaderboard_pb2.Agent(
                name=proposal.agent.name,
                spec=proposal.agent,
                state=leaderboard_pb2.AGENT_STATE_WAITING,
            )
        for submission in self.submissions.values():
            agent = agents[submission.agent]
            agent.spec.resume.CopyFrom(submission.latest)
            if submission.candidate.mean >= agent.best_evaluation.mean:
                agent.best_evaluation.CopyFrom(submission.candidate)
            if submission.agent in self.retired:
                agent.state = leaderboard_pb2.AGENT_STATE_RETIRED
        for name, agent in agents.items():
            agent.pinned = name in self.pinned
            if name in self.stopped:
                agent.state = leaderboard_pb2.AGENT_STATE_STOPPED
        return agents

    async def SetAlias(self, request, context):
        self._hear(request)
        change = leaderboard_pb2.AliasChange(
            alias=request.alias, agent=request.agent, checkpoint=request.checkpoint
        )
        self.alias_changes.insert(0, change)
        return leaderboard_pb2.SetAliasResponse(change=change)

    async def ListAliasHistory(self, request, context):
        self._hear(request)
        return leaderboard_pb2.ListAliasHistoryResponse(changes=self.alias_changes)

    async def RecordEvaluations(self, request, context):
        self._hear(request)
        for evaluation in request.evaluations:
            self.evaluations.setdefault(evaluation.evaluation_id, evaluation)
        return leaderboard_pb2.RecordEvaluationsResponse()

    async def Exchange(self, request, context):
        calls = {
            "evaluations": self.RecordEvaluations,
            "candidate": self.SubmitCandidate,
            "cohort": self.ProposeCohort,
        }
        answers = []
        for step in request.steps:
            kind = step.WhichOneof("request")
            answers.append({kind: await calls[kind](getattr(step, kind), context)})
        return leaderboard_pb2.ExchangeResponse(
            answers=[leaderboard_pb2.ExchangeResponse.Answer(**answer) for answer in answers]
        )

    def heard(self, kind: type) -> list[Any]:
        return [call for call in self.calls if isinstance(call, kind)]

    def _hear(self, request: Any) -> None:
        if self.is_away:
            raise Unavailable("the leaderboard is away")
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(request)


@dataclass
class Client:
    """The stubs of a client and of a pod."""

    jobs: Any
    artifacts: Any
    pods: Any


class Calls:
    """A stub whose methods take the fields of their requests: `CancelJob(name="projects/…")`."""

    def __init__(self, stub: Any, module: Any) -> None:
        self._stub, self._module = stub, module

    def __getattr__(self, method: str) -> Callable[..., Any]:
        request = getattr(self._module, f"{method}Request")
        return lambda **fields: getattr(self._stub, method)(request(**fields))


class FakeLearner:
    """Plays a learner: leases, writes checkpoints, commits, completes."""

    def __init__(
        self,
        pods: Any,
        store: ObjectStore,
        name: str = "projects/default/pods/x",
        **capabilities: Any,
    ) -> None:
        """`capabilities`: fields of its PodCapabilities; it runs user code unless they say
        otherwise."""
        self.pods = pods
        fields = {"layout": job_pb2.POD_LAYOUT_FUSED, "allows_user_code": True, **capabilities}
        self.capabilities = pod_pb2.PodCapabilities(**fields)
        self.store = store
        self.name = name
        self.instance_id = uuid.uuid4().hex
        self.lease: pod_pb2.Lease | None = None

    def lease_request(self, wait_s: float = 5.0, request_id: str = "") -> pod_pb2.LeaseWorkRequest:
        return pod_pb2.LeaseWorkRequest(
            pod=self.name,
            instance_id=self.instance_id,
            request_id=request_id or uuid.uuid4().hex,
            wait=seconds(wait_s),
            address=f"{self.name.rpartition('/')[2]}:7000",
            capabilities=self.capabilities,
        )

    async def ask(self, wait_s: float = 5.0, request_id: str = "") -> pod_pb2.Lease | None:
        response = await self.pods.LeaseWork(
            self.lease_request(wait_s, request_id), timeout=wait_s + 60
        )
        self.lease = response.lease if response.HasField("lease") else None
        return self.lease

    async def renew(
        self, steps: int = 0, evaluations: Any = (), lease: pod_pb2.Lease | None = None
    ) -> int:
        lease = lease or self.lease
        request = pod_pb2.RenewLeaseRequest(
            lease=lease.name,
            fence=lease.fence,
            members=[
                pod_pb2.MemberProgress(agent=member.name, env_steps=steps)
                for member in lease.train.cohort.members
            ],
            evaluations=evaluations,
            env_steps_per_second=1000.0,
        )
        return (await self.pods.RenewLease(request, metadata=bearer(lease.token))).action

    def checkpoint(
        self, agent: str, steps: int, lease: pod_pb2.Lease | None = None
    ) -> agent_pb2.CheckpointReference:
        """Write a small checkpoint, manifest last."""
        lease = lease or self.lease
        prefix = checkpoint_prefix(
            lease.name.split("/")[1], lease.job_uid, agent.rpartition("/")[2], steps, lease.fence
        )
        weights = f"weights of {agent} at {steps}".encode()
        self.store.put(f"{prefix}actor.safetensors", weights)
        manifest = Manifest(
            (ManifestFile.describe("actor.safetensors", weights),), {"agent": agent}, {}
        ).to_json()
        self.store.put(f"{prefix}{FILE_NAME}", manifest)
        return agent_pb2.CheckpointReference(
            prefix=prefix,
            manifest_sha256=ManifestFile.describe(FILE_NAME, manifest).sha256,
            size_bytes=len(weights) + len(manifest),
            env_steps=steps,
            fence=lease.fence,
        )

    def member(
        self, agent: agent_pb2.AgentSpec, steps: int, cost_s: float = 1.0
    ) -> pod_pb2.MemberCheckpoint:
        progress = pod_pb2.MemberProgress(agent=agent.name, env_steps=steps, cost=seconds(cost_s))
        return pod_pb2.MemberCheckpoint(
            progress=progress, checkpoint=self.checkpoint(agent.name, agent.env_steps + steps)
        )

    async def commit(self, steps: int, lease: pod_pb2.Lease | None = None) -> None:
        lease = lease or self.lease
        members = [self.member(member, steps) for member in lease.train.cohort.members]
        request = pod_pb2.CommitCheckpointRequest(
            lease=lease.name, fence=lease.fence, members=members
        )
        await self.pods.CommitCheckpoint(request, metadata=bearer(lease.token))

    def train_result(
        self, steps: int, score: float | None = None, episodes: int = 32
    ) -> pod_pb2.TrainResult:
        result = pod_pb2.TrainResult()
        for agent in self.lease.train.cohort.members:
            member = result.members.add(final=self.member(agent, steps))
            if score is not None:
                member.candidate.CopyFrom(
                    evaluation(agent.name, score, episodes, checkpoint=member.final.checkpoint)
                )
        return result

    def evaluate_result(self, score: float, cost_s: float = 0.5) -> pod_pb2.EvaluateResult:
        """What comes of an EVALUATE lease whose every episode has `score`."""
        work = self.lease.evaluate
        found = evaluation("", score, len(work.seeds))
        found.ClearField("seeds")
        found.seeds.extend(work.seeds)
        found.purpose = work.purpose
        result = pod_pb2.EvaluateResult(evaluation=found, cost=seconds(cost_s))
        if len(work.policies) == 1:
            result.evaluation.agent = work.policies[0].agent
            result.evaluation.checkpoint.CopyFrom(work.policies[0].checkpoint)
        else:
            result.ensemble = "vote"
        return result

    async def complete(
        self, lease: pod_pb2.Lease | None = None, **result: Any
    ) -> pod_pb2.CompleteWorkResponse:
        lease = lease or self.lease
        request = pod_pb2.CompleteWorkRequest(lease=lease.name, fence=lease.fence, **result)
        return await self.pods.CompleteWork(request, metadata=bearer(lease.token), timeout=10)

    async def confirm(self, score: float) -> None:
        """Take up the challenge that waits; its episodes have `score` again."""
        lease = await self.ask()
        assert lease is not None and lease.HasField("evaluate"), lease
        await self.complete(evaluate=self.evaluate_result(score))

    async def release(self, reason: str = "", message: str = "") -> None:
        request = pod_pb2.ReleaseLeaseRequest(
            lease=self.lease.name,
            fence=self.lease.fence,
            reason=cohort_pb2.Problem(reason=reason, message=message),
        )
        await self.pods.ReleaseLease(request, metadata=bearer(self.lease.token))


def evaluation(
    agent: str,
    score: float,
    episodes: int = 32,
    checkpoint: agent_pb2.CheckpointReference | None = None,
) -> agent_pb2.Evaluation:
    return agent_pb2.Evaluation(
        evaluation_id=uuid.uuid4().hex,
        agent=agent,
        purpose=agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
        returns=[score] * episodes,
        lengths=[10] * episodes,
        seeds=range(episodes),
        mean=score,
        lower_bound=score,
        upper_bound=score,
        checkpoint=checkpoint,
        confirm_time=seconds(0.01),
    )


def seconds(value: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(value * 1e9))
    return message


@dataclass
class Site:
    """A folder with everything an orchestrator needs; it can be started and killed there again and
    again."""

    folder: Path
    board: FakeLeaderboard
    board_address: str
    stack: contextlib.AsyncExitStack
    server: OrchestratorServer | None = None
    client: Client | None = None
    client_channel: Any = None
    pod_channel: Any = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> ObjectStore:
        return open_store(f"file://{self.folder}/store")

    @property
    def jobs(self) -> Any:
        return Calls(self.client.jobs, job_service_pb2)

    @property
    def artifacts(self) -> Any:
        return Calls(self.client.artifacts, artifact_service_pb2)

    def make_settings(self, **changes: Any) -> OrchestratorConfig:
        values: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "tokens": self.folder / "tokens",
            "database": f"sqlite:///{self.folder}/orchestrator.sqlite",
            "store": f"file://{self.folder}/store",
            "leaderboard": self.board_address,
            "lease_term": 60.0,
        }
        return OrchestratorConfig(**{**values, **self.settings, **changes})

    async def start(self, **changes: Any) -> Client:
        self.server, address = await create_server(self.make_settings(**changes))
        await self.server.start()
        return await self.connect(address)

    async def connect(self, address: str) -> Client:
        """Stubs for an orchestrator, this one or one in a process of its own."""
        tokens = {role: FileToken(self.folder / "tokens" / role) for role in ("client", "pod")}
        channels = {role: open_aio_channel(address, token) for role, token in tokens.items()}
        for channel in channels.values():
            self.stack.push_async_callback(channel.close)
        self.client_channel, self.pod_channel = channels["client"], channels["pod"]
        self.client = Client(
            job_service_pb2_grpc.JobServiceStub(channels["client"]),
            artifact_service_pb2_grpc.ArtifactServiceStub(channels["client"]),
            pod_service_pb2_grpc.PodServiceStub(channels["pod"]),
        )
        return self.client

    async def restart(self, **settings: Any) -> None:
        """With these settings from now on."""
        await self.stop()
        self.settings |= settings
        await self.start()

    async def events(self, job: job_pb2.Job | str, *kinds: str) -> list[Any]:
        """All of a job, or those of some kinds."""
        name = job if isinstance(job, str) else job.name
        found = (await self.jobs.ListEvents(job=name, page_size=1000)).events
        return [event for event in found if not kinds or event.kind in kinds]

    async def kinds(self, job: job_pb2.Job) -> list[str]:
        return [event.kind for event in await self.events(job)]

    async def stop(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop(0.1)

    def learner(self, name: str = "projects/default/pods/x", **capabilities: Any) -> FakeLearner:
        return FakeLearner(self.client.pods, self.store, name, **capabilities)

    async def job(self, name: str) -> job_pb2.Job:
        return (await self.client.jobs.GetJob(job_service_pb2.GetJobRequest(name=name))).job

    async def ended(
        self, job: job_pb2.Job, state: int = job_pb2.JOB_STATE_SUCCEEDED
    ) -> job_pb2.Job:
        """The job once it has ended in this state."""
        for _ in range(3000):
            found = await self.job(job.name)
            if found.state == state:
                return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"it has not ended: {found}")

    async def create(self, **changes: Any) -> job_pb2.Job:
        request = job_service_pb2.CreateJobRequest(spec=spec(**changes))
        return (await self.client.jobs.CreateJob(request)).job


def spec(**changes: Any) -> job_pb2.JobSpec:
    """A small CartPole job; keyword arguments replace whole parts."""
    parts: dict[str, Any] = {
        "display_name": "cartpole",
        "environment": environment_pb2.EnvironmentSpec(id="CartPole-v1"),
        "objective": evolution_pb2.Objective(target_return=475.0, max_env_steps=1_000_000),
        "evolution": evolution_pb2.Evolution(population=2, leaderboard_size=2),
    }
    return job_pb2.JobSpec(**{**parts, **changes})


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A site with an orchestrator that runs."""
    create_tokens(tmp_path / "tokens")
    board = FakeLeaderboard()
    methods = {
        f"/podracer.leaderboard.v1.LeaderboardService/{method.name}": {Role.CONTROL}
        for method in leaderboard_pb2.DESCRIPTOR.services_by_name["LeaderboardService"].methods
    }
    register = partial(leaderboard_service_pb2_grpc.add_LeaderboardServiceServicer_to_server, board)
    authorizer = Authorizer(methods, TokenFiles(tmp_path / "tokens"))
    rpc: AioRpcServer = await create_aio_server("127.0.0.1:0", [register], authorizer)
    await rpc.start()
    async with contextlib.AsyncExitStack() as stack:
        found = Site(tmp_path, board, rpc.address, stack)
        new_database(tmp_path / "orchestrator.sqlite", "podracer_orchestrator.migrations")
        await found.start()
        yield found
        await found.stop()
    await rpc.drain(0.0)


@pytest.fixture
def make_evaluation() -> Callable[..., agent_pb2.Evaluation]:
    return evaluation


@pytest.fixture
def make_spec() -> Callable[..., job_pb2.JobSpec]:
    return spec


@pytest.fixture
def description() -> environment_pb2.EnvironmentDescription:
    """What an inspection finds out of some environment: four numbers to look at, two actions."""
    found = environment_pb2.EnvironmentDescription(backend="gym")
    found.observation_space.box.MergeFrom(
        environment_pb2.BoxSpace(shape=[4], low=[-1.0], high=[1.0])
    )
    found.action_space.discrete.n = 2
    return found
