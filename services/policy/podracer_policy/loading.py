"""Policies that come by LoadPolicy."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from podracer.common.v1 import file_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer_core.checkpoint import open_packed_policy
from podracer_core.errors import DataCorrupted, FieldViolation, InvalidInput
from podracer_core.serving import ServedPolicy
from podracer_core.serving.policy import MAX_POLICIES, require_word

_MAX_BYTES = 512 << 20
_MAX_SOURCE = 1000


async def received_policy(requests: AsyncIterator[pb.LoadPolicyRequest]) -> ServedPolicy:
    """The policy that a LoadPolicy stream brings, warm. Raises InvalidInput, DataCorrupted."""
    header: pb.LoadPolicyHeader | None = None
    with tempfile.TemporaryFile(prefix="podracer-policy-") as file:
        size = 0
        async for request in requests:
            match request.WhichOneof("part"):
                case "header" if header is None:
                    header = request.header
                    _check(header)
                case "data" if header is not None:
                    size += len(request.data)
                    if size > sum(checkpoint.size_bytes for checkpoint in header.checkpoints):
                        raise DataCorrupted("more bytes came than the header says")
                    file.write(request.data)
                case part:
                    raise InvalidInput(f"expected one header, then data; got {part or 'nothing'}")
        if header is None:
            raise InvalidInput("the stream is empty; expected a header, then data")
        file.seek(0)
        parts = [file.read(checkpoint.size_bytes) for checkpoint in header.checkpoints]
    return await asyncio.to_thread(_load, header, parts)


def _check(header: pb.LoadPolicyHeader) -> None:
    require_word("name", header.name)
    require_word("version", header.version)
    if not 1 <= len(header.checkpoints) <= MAX_POLICIES:
        raise _refused("checkpoints", f"expected 1 to {MAX_POLICIES}, got {len(header.checkpoints)}")
    sizes = [checkpoint.size_bytes for checkpoint in header.checkpoints]
    if min(sizes) < 1 or sum(sizes) > _MAX_BYTES:
        raise _refused("checkpoints.size_bytes", f"expected 1 to {_MAX_BYTES} bytes together, got {sum(sizes)}")
    if len(header.source) > _MAX_SOURCE:
        raise _refused("source", f"expected at most {_MAX_SOURCE} characters, got {len(header.source)}")


def _load(header: pb.LoadPolicyHeader, parts: list[bytes]) -> ServedPolicy:
    with tempfile.TemporaryDirectory(prefix="podracer-policy-") as folder:
        checkpoints = []
        for number, (announced, data) in enumerate(zip(header.checkpoints, parts, strict=True)):
            _verify(number, announced, data)
            path = Path(folder, f"checkpoint{number}")
            path.write_bytes(data)
            checkpoints.append(open_packed_policy(path))
        return ServedPolicy(header.name, header.version, checkpoints, header.ensemble, header.source)


def _verify(number: int, announced: file_pb2.FileHeader, data: bytes) -> None:
    found = hashlib.sha256(data).hexdigest()
    if len(data) != announced.size_bytes or found != announced.sha256:
        raise DataCorrupted(
            f"checkpoint {number} arrived with {len(data)} bytes and SHA-256 {found}, expected {announced.size_bytes} "
            f"and {announced.sha256}"
        )


def _refused(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
