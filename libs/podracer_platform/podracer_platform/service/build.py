"""The build of this process, and the builds it is compatible with."""

from __future__ import annotations

import functools
import os
from importlib import metadata

from podracer.common.v1 import cohort_pb2
from podracer_core.errors import PreconditionFailed

PROTOCOL = 1
"""The version of the protocol: one more after every change that matters to a peer."""


REVISION_VARIABLE = "PODRACER_REVISION"
"""Set in our images to the hash of the commit they were built from."""

_REVISION_LENGTH = 12


@functools.cache
def _version() -> str:
    return metadata.version("podracer-core")


def own_build() -> cohort_pb2.BuildInfo:
    """This process's build."""
    revision = os.environ.get(REVISION_VARIABLE, "")[:_REVISION_LENGTH]
    return cohort_pb2.BuildInfo(version=_version(), git_commit=revision, protocol=PROTOCOL)


def describe_build() -> str:
    """The build as text: `0.1.0 (3f2a9c1d0b7e), protocol 1`."""
    own = own_build()
    revision = f" ({own.git_commit})" if own.git_commit else ""
    return f"{own.version}{revision}, protocol {own.protocol}"


def require_same_build(peer: cohort_pb2.BuildInfo) -> None:
    """All processes of a pod have the same build. Raises PreconditionFailed (BUILD_MISMATCH) for
    any other build."""
    own = own_build()
    if (peer.version, peer.protocol) != (own.version, own.protocol):
        raise PreconditionFailed(
            f"this is build {own.version} (protocol {own.protocol}), the peer is "
            f"{peer.version or 'unknown'} (protocol {peer.protocol}); the services of one pod must "
            "be of one build",
            reason="BUILD_MISMATCH",
            own=own.version,
            peer=peer.version,
        )


def is_compatible(peer: cohort_pb2.BuildInfo) -> bool:
    """Whether control plane and pod can work together: the same major version, at most one minor
    version apart."""
    own_parts, peer_parts = _parts(_version()), _parts(peer.version)
    return (
        peer_parts is not None
        and own_parts is not None
        and (own_parts[0] == peer_parts[0] and abs(own_parts[1] - peer_parts[1]) <= 1)
    )


def _parts(version: str) -> tuple[int, int] | None:
    numbers = version.split(".")
    if len(numbers) < 2 or not (numbers[0].isdecimal() and numbers[1].isdecimal()):
        return None
    return int(numbers[0]), int(numbers[1])
