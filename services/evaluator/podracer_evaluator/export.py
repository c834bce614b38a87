"""A stored policy or an ensemble as a file that runs without Podracer."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.attachments.cache import FileCache
from podracer_core.attachments.placement import place_environment
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.checkpoint import (
    Checkpoint,
    export_ensemble,
    export_policy,
    played_observations,
    rule_of,
)
from podracer_core.checkpoint.export_formats import SUFFIX_OF, Format
from podracer_core.errors import InvalidInput, PodracerError
from podracer_evaluator.checkpoints import describe

logger = logging.getLogger(__name__)

_FORMATS: dict[int, Format] = {
    evaluator_service_pb2.EXPORT_FORMAT_UNSPECIFIED: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCH_EXPORT: "torch_export",
    evaluator_service_pb2.EXPORT_FORMAT_TORCHSCRIPT: "torchscript",
    evaluator_service_pb2.EXPORT_FORMAT_ONNX: "onnx",
}


def exported_policy(
    checkpoints: Sequence[Checkpoint], number: int, rule: str, cache: FileCache
) -> tuple[evaluator_service_pb2.ExportHeader, bytes]:
    """The file's bytes and its header. The file has been loaded again and compared with the trained
    policy or ensemble.

    Raises InvalidInput for an unknown format, and for policies that cannot act together;
    PreconditionFailed if the format needs a missing package, or the file does not act alike."""
    rule_of(checkpoints, rule)
    chosen = _FORMATS.get(number)
    if chosen is None:
        problem = f"expected one of ExportFormat, got {number}"
        raise InvalidInput.of("format", problem)
    description = describe(checkpoints[0])
    played = _played(checkpoints, rule, cache)
    with tempfile.TemporaryDirectory(prefix="podracer-export-") as folder:
        path = Path(folder, f"policy{SUFFIX_OF[chosen]}")
        if len(checkpoints) == 1:
            compared = export_policy(checkpoints[0], path, chosen, played)
        else:
            compared = export_ensemble(checkpoints, path, chosen, rule, played)
        data = path.read_bytes()
    header = evaluator_service_pb2.ExportHeader(
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        largest_difference=compared.largest_difference,
        description=description,
        compared_count=compared.observations,
        played_count=0 if played is None else len(played),
    )
    return header, data


def _played(checkpoints: Sequence[Checkpoint], rule: str, cache: FileCache) -> Tensor | None:
    """Observations of the first policy's environment; None if that cannot be started here."""
    spec = EnvironmentSpec.from_metadata(checkpoints[0].metadata["environment"])
    try:
        with place_environment(spec, cache) as placed:
            return played_observations(checkpoints, placed.spec, rule)
    except PodracerError as error:
        logger.info(
            "compared on made-up observations alone: %s cannot be played: %s",
            spec.name,
            error.message,
        )
        return None
