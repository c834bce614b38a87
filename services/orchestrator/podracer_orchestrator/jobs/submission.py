"""A client's request -> a job to store, or a changed one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import entry_points

from google.protobuf.field_mask_pb2 import FieldMask

from podracer.common.v1 import environment_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer.orchestrator.v1 import job_service_pb2 as service_pb2
from podracer_core.catalogue import (
    described_environment,
    evaluator_names,
    find_recipe,
    fusion_names,
)
from podracer_core.sections import Evolution
from podracer_orchestrator.jobs.jobs import NewJob
from podracer_orchestrator.stored_messages import encode
from podracer_platform.jobs import JobSpec, check_size, shortened_rounds, validate
from podracer_platform.messages import space_to_message
from podracer_platform.rpc import resource_names as names

MAX_REQUEST_ID = 64
# without those that are read as one another
_ENDING_CHARACTERS = "abcdefghijkmnpqrstuvwxyz23456789"

_EXTENSIONS = {"generator": "podracer.generators", "updater": "podracer.updaters"}

_CHANGEABLE = (
    "labels", "objective.max_cost", "objective.max_duration", "objective.max_env_steps",
    "objective.target_return", "pod.max_count", "pod.min_count", "weight",
)  # fmt: skip


def new_job(
    request: service_pb2.CreateJobRequest, profiles: Collection[str] = (), *, has_gpus: bool = False
) -> NewJob:
    """Check a request and fill in its defaults; `profiles`: pod profiles; `has_gpus`: pods that do
    not ask for a GPU find one, too. Raises InvalidInput with every mistake."""
    project = names.parse_parent(request.parent)
    check_length(request.request_id, "request_id", MAX_REQUEST_ID)
    decoded = _decoded(request.spec)
    _check_profile(decoded.pod.profile, profiles)
    spec = _with_recipe(decoded, has_gpus=has_gpus).to_message()
    if request.job_id:
        names.check_label(request.job_id, "job_id")
    return NewJob(
        project,
        request.job_id or _job_id(spec.display_name),
        spec,
        known_description(spec),
        request.request_id,
        tuple(shortened_rounds(decoded)),
        request_digest=hashlib.sha256(encode(request)).hexdigest(),
    )


def check_length(text: str, field: str, limit: int) -> None:
    """Raise InvalidInput for a text that is longer than `limit`."""
    if len(text) > limit:
        raise names.wrong_field(field, f"has {len(text)} characters, at most {limit} are allowed")


def checked(spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
    """The same spec with every default filled in. Raises InvalidInput with every bad field."""
    return _decoded(spec).to_message()


def _decoded(spec: job_pb2.JobSpec) -> JobSpec:
    check_size(spec)
    decoded = JobSpec.from_message(spec)
    validate(decoded)
    _check_extensions(decoded.evolution)
    if decoded.pod.fusion is not None:
        _check_installed("fusion", decoded.pod.fusion.name, fusion_names(), "pod.fusion.name")
    if decoded.evaluation.evaluator:
        _check_installed(
            "evaluator", decoded.evaluation.evaluator, evaluator_names(), "evaluation.evaluator"
        )
    return decoded


def _with_recipe(spec: JobSpec, *, has_gpus: bool) -> JobSpec:
    """With the hyperparameters that are usual for the task where a pod will train it: on a GPU, if
    it has one that steps the environments."""
    info = described_environment(spec.environment.id)
    is_stepped = info is not None and "cuda" in info.devices and spec.pod.layout != "split"
    device = "cuda" if is_stepped and (has_gpus or spec.pod.resources.gpu) else "cpu"
    action_space = None if info is None else info.action_space
    return replace(
        spec, search=spec.search.filled(find_recipe(spec.environment, device), action_space)
    )


def known_description(spec: job_pb2.JobSpec) -> environment_pb2.EnvironmentDescription | None:
    """The description of a batched environment that says its spaces itself; None for any other.

    With arguments it has to be started: they may change its spaces, or be wrong.
    """
    info = described_environment(spec.environment.id)
    if info is None or not info.is_batched:
        return None
    if info.observation_space is None or info.action_space is None:
        return None
    if spec.environment.kwargs.fields or spec.retrain.kwargs.fields or spec.data or spec.data_sets:
        return None
    return environment_pb2.EnvironmentDescription(
        observation_space=space_to_message(info.observation_space),
        action_space=space_to_message(info.action_space),
        max_episode_steps=spec.environment.max_episode_steps or info.max_episode_steps or 0,
        backend=info.backend,
    )


def changed(spec: job_pb2.JobSpec, new: job_pb2.JobSpec, paths: Sequence[str]) -> job_pb2.JobSpec:
    """`spec` with the fields at `paths` as in `new`. Raises InvalidInput for a path that may not
    change."""
    result = job_pb2.JobSpec()
    result.CopyFrom(spec)
    for path in paths:
        if path not in _CHANGEABLE:
            raise names.wrong_field(
                "update_mask", f"{path!r} cannot be changed; these can: {', '.join(_CHANGEABLE)}"
            )
    source = job_pb2.JobSpec()
    source.CopyFrom(new)
    source.pod.SetInParent()  # keys that a section omits are unset, even without the section
    source.objective.SetInParent()
    FieldMask(paths=paths).MergeMessage(
        source, result, replace_message_field=True, replace_repeated_field=True
    )
    result = checked(result)
    del result.founders[:]
    result.founders.extend(spec.founders)  # with all that was looked up of their checkpoints
    return result


def _check_extensions(evolution: Evolution) -> None:
    """Refuse a missing generator or updater.

    If the leaderboard is installed beside the orchestrator, as on one machine, its extensions are
    known here. Otherwise the leaderboard refuses the name when its board is created, and the job
    fails."""
    for kind, group in _EXTENSIONS.items():
        name, known = getattr(evolution, kind), set(entry_points(group=group).names)
        if name is not None and known and name not in known:
            message = f"no {kind} {name!r} is installed; there are: {', '.join(sorted(known))}"
            raise names.wrong_field(f"evolution.{kind}", message)


def _check_installed(kind: str, name: str, known: Sequence[str], field: str) -> None:
    """Refuse a missing extension. Only its name is checked: loading it may need torch."""
    if name not in known:
        raise names.wrong_field(
            field, f"no {kind} {name[:100]!r} is installed; there are: {', '.join(known)}"
        )


def _check_profile(name: str, known: Collection[str]) -> None:
    """Refuse a profile that the operator has not defined. The local pool has none: all pods run on
    this machine."""
    if name and name not in known:
        there_are = (
            f"there are: {', '.join(sorted(known))}"
            if known
            else "this server has none: leave it out"
        )
        raise names.wrong_field("pod.profile", f"no pod profile {name!r}; {there_are}")


def _job_id(display_name: str) -> str:
    """The display name, cut to fit, and a random ending."""
    ending = "".join(secrets.choice(_ENDING_CHARACTERS) for _ in range(6))
    return f"{display_name[:56].rstrip('-')}-{ending}"
