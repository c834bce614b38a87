"""A policy, or several that act together, for use with torch alone, observation normalization included.

torch_export   `torch.export.load(path).module()(observation)`
torchscript    `torch.jit.load(path)(observation)`, for C++ and old versions of torch

Both take raw observations [B, *obs] (images as uint8) with any B of 1 or more and give actions [B, *action] in the
environment's units. They know no action masks: where some actions are not allowed, the caller has to see to it.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from podracer_core.checkpoint.ensemble import load_ensemble_policy, rule_of
from podracer_core.checkpoint.load import Checkpoint
from podracer_core.checkpoint.policy import load_policy, random_observations
from podracer_core.errors import InvalidInput

Format = Literal["torch_export", "torchscript"]

SUFFIX_OF: dict[Format, str] = {"torch_export": ".pt2", "torchscript": ".pt"}
EXTRA_FILE = "podracer.json"
"""Name of the extra file inside an export: a JSON object of the checkpoint's metadata."""


def export_policy(checkpoint: Checkpoint, path: Path, format: Format = "torch_export") -> Path:  # noqa: A002
    """Write the checkpoint's greedy policy to `path`, whole or not at all; an existing file is replaced.

    Returns `path`. Raises InvalidInput for an unknown format, a path that cannot be written, or a checkpoint that
    cannot act.
    """
    return _export(lambda: load_policy(checkpoint), checkpoint, dict(checkpoint.metadata), path, format)


def export_ensemble(
    checkpoints: Sequence[Checkpoint],
    path: Path,
    format: Format = "torch_export",  # noqa: A002
    rule: str | None = None,
) -> Path:
    """The same with policies that act together, best first, as one; `rule` by action space where None.

    The extra file has their metadata under `policies`, the rule under `ensemble`. Raises InvalidInput as
    `export_policy` and `load_ensemble` do.
    """
    metadata = {
        "ensemble": rule_of(checkpoints, rule),
        "policies": [dict(checkpoint.metadata) for checkpoint in checkpoints],
    }
    return _export(lambda: load_ensemble_policy(checkpoints, rule), checkpoints[0], metadata, path, format)


def _export(
    load: Callable[[], nn.Module],
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    path: Path,
    format: Format,  # noqa: A002
) -> Path:
    """`checkpoint`: one for what is observed."""
    writers: dict[Format, Callable[[nn.Module, torch.Tensor, Path, str], None]] = {
        "torch_export": _write_torch_export,
        "torchscript": _write_torchscript,
    }
    if format not in writers:
        raise InvalidInput(f"unknown format {format!r}: expected {' or '.join(get_args(Format))}", format=format)
    policy = load()
    example = random_observations(checkpoint, 2)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder, f"policy{SUFFIX_OF[format]}")
            writers[format](policy, example, draft, json.dumps(metadata))
            draft.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", reason="UNWRITABLE_PATH", path=path) from error
    return path


def _write_torch_export(policy: nn.Module, example: torch.Tensor, path: Path, extra: str) -> None:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(policy, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={EXTRA_FILE: extra})


def _write_torchscript(policy: nn.Module, example: torch.Tensor, path: Path, extra: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit", category=DeprecationWarning)
        module = torch.jit.trace(policy, (example,))  # type: ignore[no-untyped-call]
        torch.jit.save(module, path, _extra_files={EXTRA_FILE: extra})
