"""A job in the SDK."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2
from podracer_client.jobs.following import EVERYTHING, Follower
from podracer_client.jobs.history import FINAL_STATES, MAX_EVALUATIONS, MAX_EVENTS, History
from podracer_client.names import best_checkpoint_name, enum_word, job_name, short_name, time_text
from podracer_client.servers.stubs import Servers, pages
from podracer_core.config.other_libraries import did_you_mean
from podracer_core.errors import FieldViolation, InvalidInput, NotFound, PreconditionFailed

if TYPE_CHECKING:
    from podracer_core.catalogue.ranges import HyperparameterValue

_DELETE_TIMEOUT_S = 600.0
"""Deleting many objects may take a while; a repeated call continues where the former one ended."""


_MOST_SHOWN = 10


class Job:
    """A job on a server. `message` is its last known state; `refresh` reads it again."""

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
        return enum_word(job_pb2.JobState, self.message.state)

    @property
    def ended(self) -> bool:
        return self.message.state in FINAL_STATES

    @property
    def progress(self) -> job_pb2.JobProgress:
        """Steps, times and the best evaluation."""
        return self.message.progress

    def refresh(self) -> Job:
        """Read the job from the server again."""
        self.message = self._servers.job_service.GetJob(
            job_service_pb2.GetJobRequest(name=self.name)
        ).job
        return self

    def watch(
        self, *, after_position: int = 0, patience_s: float = 60.0, **options: Any
    ) -> Follower:
        """Iterate over the job's updates until it ends; `options` are further ones of Follower."""
        options |= {"after_position": after_position, "patience_s": patience_s}
        return Follower(lambda: self._servers, self.message, **options)

    def history(
        self, *, max_evaluations: int = MAX_EVALUATIONS, max_events: int = MAX_EVENTS
    ) -> History:
        """Everything about the job, as it is now."""
        job = self.refresh().message
        after = max(0, job.event_position - max_events)
        limits = {"max_evaluations": max_evaluations, "max_events": max_events}
        follower = self.watch(after_position=after, parts=EVERYTHING, **limits)
        for _ in follower.read():
            pass
        return follower.take(
            job, self._servers.events(job.name, after_position=after), self.pods()
        ).history

    def wait(self, *, patience_s: float = 60.0) -> Job:
        """Wait until the job ends, in any state. Raises Unavailable if the server does not answer
        for `patience_s`."""
        for update in self.watch(after_position=self.message.event_position, patience_s=patience_s):
            self.message = update.job
        return self

    def cancel(self) -> Job:
        """Cancel the job. Its results stay."""
        self.message = self._servers.job_service.CancelJob(
            job_service_pb2.CancelJobRequest(name=self.name)
        ).job
        return self

    def delete(self) -> None:
        """Delete the job, its leaderboard and its checkpoints, and those of its generations.

        Raises PreconditionFailed unless all have ended and no other job needs their checkpoints.
        """
        request = job_service_pb2.DeleteJobRequest(name=self.name)
        self._servers.job_service.DeleteJob(request, timeout=_DELETE_TIMEOUT_S)

    def suspend(self, *, timeout_s: float | None = None) -> Job:
        """Stop the job's pods after a last checkpoint, until `resume`."""
        return self._set_suspended(True, timeout_s)

    def resume(self) -> Job:
        return self._set_suspended(False, None)

    def scale(self, *, least: int | None = None, most: int | None = None) -> Job:
        """Change how many pods may work for the job, also while it runs. A limit that is not given
        stays.

        As in `pod.count`, with several learners these are teams, each of as many pods.

        Raises InvalidInput for an invalid number, PreconditionFailed if the job has ended.
        """
        from podracer_core.sections.pod import MAX_PODS

        request = job_service_pb2.UpdateJobRequest(name=self.name)
        for field, option, count in (("min_count", "min", least), ("max_count", "max", most)):
            if count is None:
                continue
            if not 1 <= count <= MAX_PODS:
                message = f"is {count}, expected 1 to {MAX_PODS}"
                raise InvalidInput(
                    f"{option}: {message}",
                    violations=[FieldViolation(f"pod.count.{option}", message)],
                )
            setattr(request.spec.pod, field, count)
            request.update_mask.paths.append(f"pod.{field}")
        if not request.update_mask.paths:
            raise InvalidInput(
                "say how many pods: at most (max), at least (min), or both",
                reason="NOTHING_TO_CHANGE",
            )
        self.message = self._servers.job_service.UpdateJob(request).job
        return self

    def _set_suspended(self, suspend: bool, timeout_s: float | None) -> Job:
        request = job_service_pb2.UpdateJobRequest(name=self.name, suspend=suspend)
        self.message = self._servers.job_service.UpdateJob(request, timeout=timeout_s).job
        return self

    def pods(self) -> list[job_pb2.Pod]:
        """The pods that work for the job."""
        request = job_service_pb2.ListPodsRequest(
            parent=self.name.partition("/jobs/")[0], job=self.name
        )
        return [
            pod for page in pages(self._servers.job_service.ListPods, request) for pod in page.pods
        ]

    def latest_events(self, count: int = 10) -> list[job_pb2.Event]:
        """The job's latest events, oldest first."""
        after = max(0, self.refresh().message.event_position - count)
        request = job_service_pb2.ListEventsRequest(
            job=self.name, after_position=after, page_size=count
        )
        return list(self._servers.job_service.ListEvents(request).events)

    def fork_agent(
        self,
        agent: str,
        hyperparameters: Mapping[str, HyperparameterValue] | None = None,
        *,
        request_id: str = "",
    ) -> str:
        """Make a new agent from the weights of `agent` (name or id), with changed hyperparameters.
        It is trained next.

        Returns its name, or an empty text if the leaderboard became unreachable; it then makes the
        agent later. Raises InvalidInput with every bad hyperparameter, NotFound,
        PreconditionFailed."""
        request = job_service_pb2.ForkAgentRequest(
            name=self._agent_name(agent), request_id=request_id or secrets.token_hex(16)
        )
        for name, value in (hyperparameters or {}).items():
            request.hyperparameters[name].CopyFrom(_hyperparameter(name, value))
        return self._servers.job_service.ForkAgent(request).agent

    def pin_agent(self, agent: str) -> None:
        """Protect an agent from being replaced, until `unpin_agent`. Raises NotFound,
        PreconditionFailed."""
        self._servers.job_service.PinAgent(
            job_service_pb2.PinAgentRequest(name=self._agent_name(agent))
        )

    def unpin_agent(self, agent: str) -> None:
        """Allow an agent to be replaced again."""
        self._servers.job_service.PinAgent(
            job_service_pb2.PinAgentRequest(name=self._agent_name(agent), unpin=True)
        )

    def stop_agent(self, agent: str) -> None:
        """Stop training an agent at the end of its round. Its checkpoints and results stay."""
        self._servers.job_service.StopAgent(
            job_service_pb2.StopAgentRequest(name=self._agent_name(agent))
        )

    def _agent_name(self, agent: str) -> str:
        return agent if "/" in agent else f"{self.name}/agents/{agent}"

    def leaderboard(self) -> leaderboard_service_pb2.Leaderboard:
        """The job's ranked candidates, best first. Raises PreconditionFailed while it has no
        leaderboard."""
        if not self.message.leaderboard:
            raise PreconditionFailed(
                f"{self.name} has no leaderboard yet: its state is {self.state}",
                reason="NO_LEADERBOARD",
            )
        return self._servers.leaderboard(self.message.leaderboard)

    def download_best(self, target: str | Path) -> artifact_service_pb2.Artifact:
        """Write the best candidate's checkpoint into the new folder `target`. Raises NotFound if
        there is none yet."""
        return self._servers.download(best_checkpoint_name(self.name), target)


def _hyperparameter(name: str, value: HyperparameterValue) -> agent_pb2.HyperparameterValue:
    from podracer_platform.messages.catalogue import hyperparameter_to_message

    try:
        return hyperparameter_to_message(value)
    except (TypeError, ValueError) as error:
        problem = (
            "expected a number, a word, true or false, or a list of whole numbers, not "
            f"{value!r:.100}"
        )
        raise InvalidInput.of(name, problem) from error


def find_job(servers: Servers, text: str) -> job_pb2.Job:
    """Raises NotFound with the nearest names, InvalidInput (AMBIGUOUS_NAME) with the jobs that
    share the name."""
    name = job_name(text)
    try:
        return servers.job_service.GetJob(job_service_pb2.GetJobRequest(name=name)).job
    except NotFound as error:
        cause = error
    project, short = name.partition("/jobs/")[0], short_name(name)
    named = _list(servers, project, f"display_name={short}")
    if not named:
        problem = f"there is no job {text}; {_advice(_list(servers, project), short)}"
        raise NotFound(problem, reason="JOB_NOT_FOUND", job=text) from cause
    if len(named) > 1:
        problem = f"{len(named)} jobs are called {short}; name one by its id:\n{_candidates(named)}"
        raise InvalidInput(problem, field="job", reason="AMBIGUOUS_NAME", name=text)
    return named[0]


def _list(servers: Servers, project: str, matching: str = "") -> list[job_pb2.Job]:
    view = job_service_pb2.JOB_VIEW_FULL if matching else job_service_pb2.JOB_VIEW_BASIC
    request = job_service_pb2.ListJobsRequest(parent=project, filter=matching, view=view)
    return [job for page in pages(servers.job_service.ListJobs, request) for job in page.jobs]


def _advice(jobs: Sequence[job_pb2.Job], text: str) -> str:
    known = dict.fromkeys(
        name for job in jobs for name in (job.spec.display_name, short_name(job.name))
    )
    return did_you_mean(text, known, "`podracer jobs` lists them")


def _candidates(jobs: Sequence[job_pb2.Job]) -> str:
    """Id, creation and state of each, newest first."""
    lines = [
        f"  {short_name(job.name)}  created {time_text(job.create_time)}  "
        f"{enum_word(job_pb2.JobState, job.state)}"
        for job in jobs[:_MOST_SHOWN]
    ]
    more = len(jobs) - len(lines)
    return "\n".join([*lines, f"  and {more} more"] if more else lines)
