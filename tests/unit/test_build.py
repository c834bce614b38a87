"""Which builds may talk."""

from __future__ import annotations

import subprocess
import sys

import pytest

from podracer.common.v1 import cohort_pb2
from podracer_core.errors import PreconditionFailed
from podracer_platform.service import (
    PROTOCOL,
    REVISION_VARIABLE,
    describe_build,
    is_compatible,
    own_build,
    require_same_build,
)
from support.errors import raises


def test_a_build_gets_along_with_itself():
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
def test_inside_a_pod_only_the_same_build_will_do(peer):
    with raises(PreconditionFailed, "BUILD_MISMATCH"):
        require_same_build(peer)


def test_control_plane_and_pods_may_be_one_minor_version_apart():
    major, minor, *_ = own_build().version.split(".")
    for apart, expected in ((1, True), (2, False)):
        version = f"{major}.{int(minor) + apart}.7"
        assert is_compatible(cohort_pb2.BuildInfo(version=version)) is expected
    assert not is_compatible(cohort_pb2.BuildInfo(version=f"{int(major) + 1}.{minor}.0"))
    assert not is_compatible(cohort_pb2.BuildInfo(version="unknown"))


def test_an_image_knows_its_commit(monkeypatch):
    monkeypatch.setenv(REVISION_VARIABLE, "0123456789abcdef0123456789abcdef01234567")
    assert own_build().git_commit == "0123456789ab"
    assert describe_build() == f"{own_build().version} (0123456789ab), protocol {PROTOCOL}"


@pytest.mark.parametrize("role", ["orchestrator", "leaderboard", "learner", "worker", "evaluator"])
def test_every_service_says_its_version(role):
    command = [sys.executable, "-m", f"podracer_{role}"]
    said = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (said.returncode, said.stdout) == (0, f"podracer_{role} {describe_build()}\n")
    refused = subprocess.run(
        [*command, "--listen"], capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert "unknown argument '--listen'" in refused.stderr
