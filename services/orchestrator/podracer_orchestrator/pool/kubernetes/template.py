"""The pod template that the operator gives: a YAML file with the metadata and the spec of a pod.

    container `learner`                     in PODRACER_RUN_DIR it says where the pod's sockets are
    init containers `worker`, `evaluator`   with restartPolicy Always, so that they run beside it

What is the same for every pod (images, addresses, tokens, keys, volumes, security) stands there; job.py adds the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from podracer_core.errors import InvalidInput

__all__ = ["EVALUATOR", "LEARNER", "RUN_DIR", "WORKER", "container", "read_template", "value_of"]

LEARNER, WORKER, EVALUATOR = "learner", "worker", "evaluator"
RUN_DIR = "PODRACER_RUN_DIR"


def read_template(path: Path) -> dict[str, Any]:
    """A checked template. Raises InvalidInput, naming the place."""
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise _wrong(path, f"is no YAML: {' '.join(str(error).split())}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise _wrong(path, "expected one object with metadata and spec")
    found = documents[0].get("template") if documents[0].get("kind") == "PodTemplate" else documents[0]
    if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
        raise _wrong(path, "expected one object with metadata and spec, as in the template of a Job")
    spec = found["spec"]
    learner = _require(path, spec, "containers", LEARNER)
    for name in (WORKER, EVALUATOR):
        if _require(path, spec, "initContainers", name).get("restartPolicy") != "Always":
            raise _wrong(path, f"spec.initContainers: {name} needs restartPolicy: Always, or the learner never starts")
    folder = value_of(learner, RUN_DIR)
    if not folder.startswith("/") or len(folder) > 64:
        raise _wrong(path, f"the learner's {RUN_DIR} is {folder!r}, expected an absolute path of at most 64 characters")
    for each in (learner, *(container(spec, name) for name in (WORKER, EVALUATOR))):
        mounts = [mount.get("mountPath") for mount in each.get("volumeMounts") or ()]
        if folder not in mounts:
            raise _wrong(path, f"{each['name']} mounts nothing at {folder}, where the sockets of the pod are")
    return {"metadata": found.get("metadata") or {}, "spec": spec}


def container(spec: dict[str, Any], name: str) -> dict[str, Any]:
    """A container or init container of a checked template."""
    everything = [*spec["containers"], *spec["initContainers"]]
    found: dict[str, Any] = next(each for each in everything if each["name"] == name)
    return found


def value_of(of: dict[str, Any], variable: str) -> str:
    """An environment variable of a container; empty where it has none of that name, or not by value."""
    found = [entry.get("value") for entry in of.get("env") or () if entry.get("name") == variable]
    return str(found[-1] or "") if found else ""


def _require(path: Path, spec: dict[str, Any], field: str, name: str) -> dict[str, Any]:
    entries = spec.get(field) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _wrong(path, f"spec.{field} is no list of containers")
    found: list[dict[str, Any]] = [entry for entry in entries if entry.get("name") == name]
    if len(found) != 1:
        names = ", ".join(str(entry.get("name")) for entry in entries) or "none"
        raise _wrong(path, f"spec.{field}: expected one that is named {name}, found {names}")
    for part in ("env", "volumeMounts"):
        value = found[0].get(part) or []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise _wrong(path, f"spec.{field}: {name}: {part} is no list of objects")
    return found[0]


def _wrong(path: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"pod template {path} (PODRACER_POD_TEMPLATE): {problem}", reason="INVALID_POD_TEMPLATE")
