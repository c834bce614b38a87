"""One job as the SDK shows it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2
from podracer_client.jobs.watch import FINAL_STATES, JobWatch
from podracer_client.names import best_checkpoint_name
from podracer_client.servers.stubs import Servers, pages
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

if TYPE_CHECKING:
    from podracer_core.catalogue.ranges import HyperparameterValue

_DELETE_TIMEOUT_S = 600.0
"""A store may take a while to delete many objects; the same call again goes on where this one was cut off."""


class Job:
    """A job on a server; `message` is what was last heard of it, `refresh` asks again."""

    def __init__(self, servers: Servers, message: job_pb2.Job) -> None:
        self._servers = servers
        self.message = message

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.state})"

    @property
    def name(self) -> str:
        """Resource name: `projects/p/jobs/j`."""
        return self.message.name

    @property
    def state(self) -> str:
        """`RUNNING`, `SUCCEEDED`, …"""
        return job_pb2.JobState.Name(self.message.state).removeprefix("JOB_STATE_")

    @property
    def ended(self) -> bool:
        return self.message.state in FINAL_STATES

    @property
    def progress(self) -> job_pb2.JobProgress:
        """Its figures: steps, times, the best evaluation."""
        return self.message.progress

    def refresh(self) -> Job:
        """Ask the server again."""
        self.message = self._servers.job_service.GetJob(job_service_pb2.GetJobRequest(name=self.name)).job
        return self

    def watch(self, *, after_position: int = 0, patience_s: float = 60.0) -> JobWatch:
        """Iterate over its updates until it has ended; see JobWatch."""
        return JobWatch(self._servers.job_service, self.name, after_position=after_position, patience_s=patience_s)

    def wait(self, *, patience_s: float = 60.0) -> Job:
        """Return when it has ended, well or not. Raises Unavailable when the server is away for `patience_s`."""
        for update in self.watch(after_position=self.message.event_position, patience_s=patience_s):
            self.message = update.job
        return self

    def cancel(self) -> Job:
        """End it; what it has reached stays."""
        self.message = self._servers.job_service.CancelJob(job_service_pb2.CancelJobRequest(name=self.name)).job
        return self

    def delete(self) -> None:
        """Delete it, its leaderboard and its checkpoints, and those of the jobs that it has made.

        Raises PreconditionFailed unless they have ended and no other job needs their checkpoints.
        """
        request = job_service_pb2.DeleteJobRequest(name=self.name)
        self._servers.job_service.DeleteJob(request, timeout=_DELETE_TIMEOUT_S)

    def suspend(self, *, timeout_s: float | None = None) -> Job:
        """Stop its pods after a last checkpoint, until it is resumed."""
        return self._set_suspended(True, timeout_s)

    def resume(self) -> Job:
        return self._set_suspended(False, None)

    def scale(self, *, least: int | None = None, most: int | None = None) -> Job:
        """Change how many pods may work for it, also while it runs; what is not given stays.

        As `pod.count` these are teams where an agent has several learners, of as many pods each.

        Raises InvalidInput for a number that cannot be, PreconditionFailed where it has ended.
        """
        from podracer_core.jobs.pod import MAX_PODS

        request = job_service_pb2.UpdateJobRequest(name=self.name)
        for field, option, count in (("min_count", "min", least), ("max_count", "max", most)):
            if count is None:
                continue
            if not 1 <= count <= MAX_PODS:
                message = f"is {count}, expected 1 to {MAX_PODS}"
                raise InvalidInput(f"{option}: {message}", violations=[FieldViolation(f"pod.count.{option}", message)])
            setattr(request.spec.pod, field, count)
            request.update_mask.paths.append(f"pod.{field}")
        if not request.update_mask.paths:
            raise InvalidInput("say how many pods: at most (max), at least (min), or both", reason="NOTHING_TO_CHANGE")
        self.message = self._servers.job_service.UpdateJob(request).job
        return self

    def _set_suspended(self, suspend: bool, timeout_s: float | None) -> Job:
        request = job_service_pb2.UpdateJobRequest(name=self.name, suspend=suspend)
        self.message = self._servers.job_service.UpdateJob(request, timeout=timeout_s).job
        return self

    def pods(self) -> list[job_pb2.Pod]:
        """The pods that work for it."""
        request = job_service_pb2.ListPodsRequest(parent=self.name.partition("/jobs/")[0], job=self.name)
        return [pod for page in pages(self._servers.job_service.ListPods, request) for pod in page.pods]

    def latest_events(self, count: int = 10) -> list[job_pb2.Event]:
        """What happened to it last, oldest first."""
        after = max(0, self.refresh().message.event_position - count)
        request = job_service_pb2.ListEventsRequest(job=self.name, after_position=after, page_size=count)
        return list(self._servers.job_service.ListEvents(request).events)

    def fork_agent(
        self, agent: str, hyperparameters: Mapping[str, HyperparameterValue] | None = None, *, request_id: str = ""
    ) -> str:
        """Make an agent from the weights of another one (by name or id), with some hyperparameters changed.

        It is trained next, beside the others. Returns its name; empty where the leaderboard went away meanwhile, which
        then makes it later. Raises InvalidInput with every bad hyperparameter, NotFound, PreconditionFailed.
        """
        request = job_service_pb2.ForkAgentRequest(
            name=self._agent_name(agent), request_id=request_id or secrets.token_hex(16)
        )
        for name, value in (hyperparameters or {}).items():
            request.hyperparameters[name].CopyFrom(_hyperparameter(name, value))
        return self._servers.job_service.ForkAgent(request).agent

    def pin_agent(self, agent: str) -> None:
        """Have no other agent take its place until it is unpinned. Raises NotFound, PreconditionFailed."""
        self._servers.job_service.PinAgent(job_service_pb2.PinAgentRequest(name=self._agent_name(agent)))

    def unpin_agent(self, agent: str) -> None:
        """Let others take its place again."""
        self._servers.job_service.PinAgent(job_service_pb2.PinAgentRequest(name=self._agent_name(agent), unpin=True))

    def stop_agent(self, agent: str) -> None:
        """Train it no more once its round has ended; its checkpoints and results stay."""
        self._servers.job_service.StopAgent(job_service_pb2.StopAgentRequest(name=self._agent_name(agent)))

    def _agent_name(self, agent: str) -> str:
        return agent if "/" in agent else f"{self.name}/agents/{agent}"

    def leaderboard(self) -> leaderboard_service_pb2.Leaderboard:
        """Its ranked candidates, best first. Raises PreconditionFailed while it has no leaderboard yet."""
        if not self.message.leaderboard:
            raise PreconditionFailed(
                f"{self.name} has no leaderboard yet: its state is {self.state}", reason="NO_LEADERBOARD"
            )
        return self._servers.leaderboard(self.message.leaderboard)

    def download_best(self, target: str | Path) -> artifact_service_pb2.Artifact:
        """Write the best candidate's checkpoint into the new folder `target`. Raises NotFound while there is none."""
        return self._servers.download(best_checkpoint_name(self.name), target)


def _hyperparameter(name: str, value: HyperparameterValue) -> agent_pb2.HyperparameterValue:
    from podracer_core.catalogue.messages import hyperparameter_to_message

    try:
        return hyperparameter_to_message(value)
    except (TypeError, ValueError) as error:
        problem = f"expected a number, a word, true or false, or a list of whole numbers, not {value!r:.100}"
        raise InvalidInput.of(name, problem) from error
