"""A stored policy, or several that act together, as a file that torch alone can run."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.checkpoint import (
    Checkpoint,
    export_ensemble,
    export_policy,
    load_ensemble_policy,
    load_policy,
    rule_of,
)
from podracer_core.checkpoint.export import SUFFIX_OF, Format
from podracer_core.checkpoint.policy import random_observations
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_evaluator.checkpoints import describe

__all__ = ["exported_policy"]

_FORMATS: dict[int, Format] = {
    evaluator_service_pb2.EXPORT_FORMAT_UNSPECIFIED: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCH_EXPORT: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCHSCRIPT: "torchscript",
}
_PROBES = 64


def exported_policy(
    checkpoints: Sequence[Checkpoint], number: int, rule: str
) -> tuple[evaluator_service_pb2.ExportHeader, bytes]:
    """The file's bytes and what is in it; it has been loaded again and compared with the trained policy, or with what
    several do together.

    Raises PreconditionFailed for a format that is not supported, InvalidInput for a number that is none, and for
    policies that cannot act together.
    """
    rule_of(checkpoints, rule)
    chosen = _FORMATS.get(number)
    if number not in evaluator_service_pb2.ExportFormat.values():
        problem = f"expected one of ExportFormat, got {number}"
        raise InvalidInput(f"format: {problem}", violations=[FieldViolation("format", problem)])
    if chosen is None:
        name = evaluator_service_pb2.ExportFormat.Name(number)  # type: ignore[arg-type]
        raise PreconditionFailed(f"{name} is not supported; torch.export and TorchScript are", reason="EXPORT_FORMAT")
    with tempfile.TemporaryDirectory(prefix="podracer-export-") as folder:
        path = Path(folder, f"policy{SUFFIX_OF[chosen]}")
        if len(checkpoints) == 1:
            export_policy(checkpoints[0], path, chosen)
        else:
            export_ensemble(checkpoints, path, chosen, rule)
        difference = _difference(checkpoints, rule, path, chosen)
        data = path.read_bytes()
    header = evaluator_service_pb2.ExportHeader(
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        largest_difference=difference,
        description=describe(checkpoints[0]),
    )
    return header, data


def _difference(checkpoints: Sequence[Checkpoint], rule: str, path: Path, chosen: Format) -> float:
    """Largest difference between the actions of the file and of the trained policy, on random observations."""
    module = torch.export.load(path).module() if chosen == "torch_export" else torch.jit.load(path)  # type: ignore[no-untyped-call]
    observation = random_observations(checkpoints[0], _PROBES)
    alone = len(checkpoints) == 1
    trained = load_policy(checkpoints[0]) if alone else load_ensemble_policy(checkpoints, rule)
    with torch.inference_mode():
        return float((module(observation).double() - trained(observation).double()).abs().max())
