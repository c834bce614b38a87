"""The pod template of the operator: an object of the kind PodTemplate, in the orchestrator's
namespace.

    annotation podracer.dev/version         the version of Podracer that it was written for
    container `learner`                     PODRACER_RUN_DIR is the folder of the pod's sockets;
                                            PODRACER_LISTEN is port 50051 of every address, of IPv4
                                            or IPv6
    init containers `worker`, `evaluator`   with restartPolicy Always, so that they run beside it

It holds everything that is the same for all pods (images, addresses, tokens, keys, volumes,
security); job.py adds the rest. A profile adds a place: nodes, accelerator, priority."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_core.errors import InvalidInput
from podracer_core.sections import is_profile_name
from podracer_orchestrator.jobs import OperatorFile
from podracer_platform.kubernetes import Item
from podracer_platform.service import own_build

GPU_RESOURCE = "gpuResource"
_TEXTS = ("priorityClassName", "runtimeClassName", GPU_RESOURCE)
FIELDS = {"nodeSelector": dict, "tolerations": list, **dict.fromkeys(_TEXTS, str)}
_WORDS = {dict: "an object", list: "a list", str: "a text"}

Profiles = OperatorFile[Mapping[str, Any]]


def read_profiles(path: Path | None) -> Profiles:
    """The profiles of a file. Raises InvalidInput with the place of the error; the cluster checks
    the contents of the fields."""
    return OperatorFile("pod profiles", path, list(FIELDS), _checked)


def _checked(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if not is_profile_name(name):
        raise ValueError(
            f"{name!r} is no name: expected lower-case letters, digits and '-', at most 20"
        )
    for field, value in fields.items():
        if not isinstance(value, FIELDS[field]):
            raise ValueError(f"{name}: {field} is {value!r}, expected {_WORDS[FIELDS[field]]}")
    return fields


LEARNER, WORKER, EVALUATOR = "learner", "worker", "evaluator"
RUN_DIR = "PODRACER_RUN_DIR"
VERSION = "podracer.dev/version"
INVALID_TEMPLATE = "INVALID_POD_TEMPLATE"
"""Reason of the InvalidInput."""


def read_template(name: str, item: Item | None) -> dict[str, Any]:
    """The checked metadata and spec of a PodTemplate; None: there is none. Raises InvalidInput with
    the place of the error."""
    if item is None:
        raise _wrong(name, "there is no PodTemplate of that name in the orchestrator's namespace")
    version, own = (item["metadata"].get("annotations") or {}).get(VERSION), own_build().version
    if version != own:
        raise _wrong(
            name,
            f"it is of the version {version or 'unknown'} ({VERSION}), this orchestrator is {own}",
        )
    found = item.get("template") or {}
    spec = found.get("spec") or {}
    learner = _require(name, spec, "containers", LEARNER)
    for role in (WORKER, EVALUATOR):
        if _require(name, spec, "initContainers", role).get("restartPolicy") != "Always":
            raise _wrong(
                name,
                f"spec.initContainers: {role} needs restartPolicy: Always, or the learner never "
                "starts",
            )
    folder = value_of(learner, RUN_DIR)
    if not folder.startswith("/") or len(folder) > 64:
        raise _wrong(
            name,
            f"the learner's {RUN_DIR} is {folder!r}, expected an absolute path of at most 64 "
            "characters",
        )
    for each in (learner, *(container(spec, role) for role in (WORKER, EVALUATOR))):
        mounts = [mount.get("mountPath") for mount in each.get("volumeMounts") or ()]
        if folder not in mounts:
            raise _wrong(
                name, f"{each['name']} mounts nothing at {folder}, where the sockets of the pod are"
            )
    return {"metadata": found.get("metadata") or {}, "spec": spec}


def place(
    template: dict[str, Any], profiles: Mapping[str, Mapping[str, Any]], name: str
) -> dict[str, Any]:
    """The template of a profile's pods; "": unchanged. Raises InvalidInput if the profile no longer
    exists."""
    if not name:
        return template
    if name not in profiles:
        message = (
            f"cannot create pods: the pod profile {name} no longer exists (PODRACER_POD_PROFILES)"
        )
        raise InvalidInput(message, reason=INVALID_TEMPLATE)
    fields, spec = dict(profiles[name]), dict(template["spec"])
    gpu = fields.pop(GPU_RESOURCE, "")
    for field, kind in FIELDS.items():
        if field in fields and spec.get(field) and kind is not str:
            fields[field] = (
                {**spec[field], **fields[field]} if kind is dict else [*spec[field], *fields[field]]
            )
    return {**template, "spec": spec | fields, GPU_RESOURCE: gpu}


def digest(template: Mapping[str, Any]) -> str:
    """The digest of a checked template, which changes with it."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]


def container(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """A container or init container of a checked template."""
    everything = [*spec["containers"], *spec["initContainers"]]
    found: dict[str, Any] = next(each for each in everything if each["name"] == name)
    return found


def value_of(of: dict[str, Any], variable: str) -> str:
    """An environment variable of a container; empty if it has none of that name, or not by
    value."""
    found = [entry.get("value") for entry in of.get("env") or () if entry.get("name") == variable]
    return str(found[-1] or "") if found else ""


def _require(template: str, spec: dict[str, Any], field: str, name: str) -> dict[str, Any]:
    entries = {entry["name"]: entry for entry in spec.get(field) or ()}
    if name not in entries:
        raise _wrong(
            template,
            f"spec.{field}: expected one that is named {name}, found "
            f"{', '.join(entries) or 'none'}",
        )
    found: dict[str, Any] = entries[name]
    return found


def _wrong(name: str, problem: str) -> InvalidInput:
    message = (
        f"cannot create pods: the pod template {name} (PODRACER_POD_TEMPLATE) is unusable: "
        f"{problem}"
    )
    return InvalidInput(message, reason=INVALID_TEMPLATE)
