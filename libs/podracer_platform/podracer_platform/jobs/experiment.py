"""An experiment: the jobs of one file with a matrix, compared afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from podracer_core.config import Document, LocatedViolation, Node
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.jobs.job_file import build_job
from podracer_platform.jobs.matrix import Combination, axis_label, combinations, split_matrix
from podracer_platform.jobs.spec import JobSpec
from podracer_platform.rpc.resource_names import is_label
from podracer_platform.yaml_text import load_yaml, parse_yaml

__all__ = ["EXPERIMENT_LABEL", "Experiment", "axis_label", "load_experiment", "parse_experiment"]

EXPERIMENT_LABEL = "experiment"
"""Label of every job of an experiment: the name in its file."""

_MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class Experiment:
    """The jobs of one file. `axes` are the paths of its matrix; without a matrix there is one
    job."""

    name: str
    axes: tuple[str, ...]
    jobs: tuple[JobSpec, ...]


def load_experiment(path: Path) -> Experiment:
    """Read, build and validate a job file, with or without a matrix.

    Raises InvalidInput with every mistake of every job, each once, with file, line, field and the
    expected value. If only some jobs have the mistake, it names the first such combination."""
    return _experiment(load_yaml(path), path.parent)


def parse_experiment(
    text: str, source: str = "job.yaml", folder: Path | None = Path()
) -> Experiment:
    """`load_experiment` of a text; see `podracer_platform.jobs.job_file.parse_job`."""
    return _experiment(parse_yaml(text, source), folder)


def _experiment(document: Document, folder: Path | None) -> Experiment:
    document, axes = split_matrix(document)
    if not axes:
        job = build_job(document, folder)
        return Experiment(job.name, (), (job,))
    product = list(combinations(document, axes))
    _check_names(document, [axis.path for axis in axes], len(product))
    jobs: list[JobSpec] = []
    mistakes: dict[LocatedViolation, list[Combination]] = {}
    for number, combination in enumerate(product, 1):
        try:
            jobs.append(build_job(_named(combination, number), folder))
        except InvalidInput as error:
            for violation in error.violations:
                mistakes.setdefault(document.locate(violation), []).append(combination)
    if mistakes:
        told = [_told(violation, where, len(product)) for violation, where in mistakes.items()]
        raise document.refuse(told)
    return Experiment(str(_name(document)), tuple(axis.path for axis in axes), tuple(jobs))


def _told(violation: LocatedViolation, where: Sequence[Combination], jobs: int) -> LocatedViolation:
    """The mistake with its combination, unless all combinations have it."""
    if len(where) == jobs:
        return violation
    more = f", and {len(where) - 1:_} more" if len(where) > 1 else ""
    return replace(violation, message=f"{violation.message} (where {where[0]}{more})")


def _check_names(document: Document, paths: Sequence[str], count: int) -> None:
    """Check the names and labels that the matrix makes, once for all jobs."""
    problems = []
    name, ending = _name(document), f"-{count}"
    if isinstance(name, str) and is_label(name) and len(name) + len(ending) > _MAX_NAME:
        message = (
            f"with {ending} at its end it has more than {_MAX_NAME} characters; expected a "
            "shorter one"
        )
        problems.append(FieldViolation("name", message))
    labels = _labels(document)
    problems += [
        FieldViolation(f"labels.{label}", "is set by the matrix; choose another label")
        for label in (EXPERIMENT_LABEL, *map(axis_label, paths))
        if label in labels
    ]
    if problems:
        raise document.refuse(problems)


def _named(combination: Combination, number: int) -> Document:
    """The combination's file with its job's own name and labels."""
    document, name = combination.document, _name(combination.document)
    assert isinstance(document.root.value, Mapping), "a matrix has been found in it"
    children = dict(document.root.value)
    if isinstance(name, str) and is_label(name):  # any other name is reported unchanged
        children["name"] = replace(children["name"], value=f"{name}-{number}")
        ours = {
            EXPERIMENT_LABEL: name,
            **{axis_label(path): text for path, text in combination.texts.items()},
        }
        labels = children.get("labels", Node({}, document.root.line, document.root.key_line))
        if isinstance(labels.value, Mapping):
            added = {key: Node(text, labels.line, labels.key_line) for key, text in ours.items()}
            children["labels"] = replace(labels, value={**labels.value, **added})
    return replace(document, root=replace(document.root, value=children))


def _name(document: Document) -> object:
    root = document.root.value
    return root["name"].value if isinstance(root, Mapping) and "name" in root else None


def _labels(document: Document) -> Mapping[str, Node]:
    root = document.root.value
    labels = root["labels"].value if isinstance(root, Mapping) and "labels" in root else None
    return labels if isinstance(labels, Mapping) else {}
