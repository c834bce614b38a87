"""A policy for use with torch alone, observation normalization included.

torch_export   `torch.export.load(path).module()(observation)`
torchscript    `torch.jit.load(path)(observation)`, for C++ and old versions of torch

Both take raw observations [B, *obs] (images as uint8) with any B of 1 or more and give actions [B, *action] in the
environment's units. They know no action masks: where some actions are not allowed, the caller has to see to it.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch

from podracer_core.checkpoint.load import Checkpoint
from podracer_core.checkpoint.policy import load_policy, random_observations
from podracer_core.errors import InvalidInput
from podracer_core.networks import Policy

Format = Literal["torch_export", "torchscript"]

SUFFIX_OF: dict[Format, str] = {"torch_export": ".pt2", "torchscript": ".pt"}
EXTRA_FILE = "podracer.json"
"""Name of the extra file inside an export: a JSON object of the checkpoint's metadata."""


def export_policy(checkpoint: Checkpoint, path: Path, format: Format = "torch_export") -> Path:  # noqa: A002
    """Write the checkpoint's greedy policy to `path`, whole or not at all; an existing file is replaced.

    Returns `path`. Raises InvalidInput for an unknown format, a path that cannot be written, or a checkpoint that
    cannot act.
    """
    writers: dict[Format, Callable[[Policy, torch.Tensor, Path, str], None]] = {
        "torch_export": _write_torch_export,
        "torchscript": _write_torchscript,
    }
    if format not in writers:
        raise InvalidInput(f"unknown format {format!r}: expected {' or '.join(get_args(Format))}", format=format)
    policy = load_policy(checkpoint)
    example = random_observations(checkpoint, 2)
    extra = json.dumps(dict(checkpoint.metadata))
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder, f"policy{SUFFIX_OF[format]}")
            writers[format](policy, example, draft, extra)
            draft.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", reason="UNWRITABLE_PATH", path=path) from error
    return path


def _write_torch_export(policy: Policy, example: torch.Tensor, path: Path, extra: str) -> None:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(policy, (example,), dynamic_shapes=({0: batch},))
    torch.export.save(program, path, extra_files={EXTRA_FILE: extra})


def _write_torchscript(policy: Policy, example: torch.Tensor, path: Path, extra: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit", category=DeprecationWarning)
        module = torch.jit.trace(policy, (example,))  # type: ignore[no-untyped-call]
        torch.jit.save(module, path, _extra_files={EXTRA_FILE: extra})
