"""What acting needs of a checkpoint as one file: for who has no store, and knows files by their hash.

A safetensors file with tensors `<group>/<name>`, and in its header the checkpoint's metadata and libraries as JSON. The
same checkpoint always gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from podracer_core.checkpoint.load import Checkpoint
from podracer_core.checkpoint.policy import POLICY_GROUPS
from podracer_core.errors import DataCorrupted

_HEADER = "podracer"


def pack_policy(checkpoint: Checkpoint) -> bytes:
    """The policy of a checkpoint with all of its metadata."""
    tensors = {
        f"{group}/{name}": tensor
        for group in POLICY_GROUPS
        for name, tensor in checkpoint.groups.get(group, {}).items()
    }
    header = {"metadata": dict(checkpoint.metadata), "libraries": dict(checkpoint.libraries)}
    return safetensors.torch.save(tensors, {_HEADER: json.dumps(header, sort_keys=True)})


def open_packed_policy(path: Path) -> Checkpoint:
    """The inverse of `pack_policy`; whoever keeps the file vouches for its bytes. Raises DataCorrupted for any other
    file."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
            return Checkpoint(groups, dict(header["metadata"]), dict(header["libraries"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataCorrupted(f"{path.name} is not a packed policy: {error!r}", file=path.name) from error
