"""Which builds may talk."""

from __future__ import annotations

import pytest

from podracer.common.v1 import cohort_pb2
from podracer_core.build import PROTOCOL, is_compatible, own_build, require_same_build
from podracer_core.errors import PreconditionFailed


def test_a_build_gets_along_with_itself() -> None:
    require_same_build(own_build())
    assert is_compatible(own_build())


@pytest.mark.parametrize(
    "peer",
    [
        cohort_pb2.BuildInfo(),
        cohort_pb2.BuildInfo(version="9.9.9", protocol=PROTOCOL),
        cohort_pb2.BuildInfo(version=own_build().version, protocol=PROTOCOL + 1),
    ],
)
def test_inside_a_pod_only_the_same_build_will_do(peer: cohort_pb2.BuildInfo) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        require_same_build(peer)
    assert refused.value.reason == "BUILD_MISMATCH"


def test_control_plane_and_pods_may_be_one_minor_version_apart() -> None:
    major, minor, *_ = own_build().version.split(".")
    for apart, expected in ((1, True), (2, False)):
        version = f"{major}.{int(minor) + apart}.7"
        assert is_compatible(cohort_pb2.BuildInfo(version=version)) is expected
    assert not is_compatible(cohort_pb2.BuildInfo(version=f"{int(major) + 1}.{minor}.0"))
    assert not is_compatible(cohort_pb2.BuildInfo(version="unknown"))
