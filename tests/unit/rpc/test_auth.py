"""The method table: who may call what."""

from __future__ import annotations

from pathlib import Path

import pytest

from podracer_core.errors import PermissionRefused, Unauthenticated
from podracer_platform.rpc import (
    Authorizer,
    Identity,
    LeaseTokens,
    Role,
    TokenFiles,
    bearer,
    current_caller,
    hash_token,
)

LEASES = LeaseTokens(b"s" * 32)
LEASE_WORK, RENEW = "/podracer.T/LeaseWork", "/podracer.T/RenewLease"


@pytest.fixture
def authorizer(tmp_path: Path) -> Authorizer:
    for role in ("client", "pod"):
        (tmp_path / role).write_text(f"{role}-token\n")
    return Authorizer({LEASE_WORK: {Role.POD}, RENEW: {Role.LEASE}}, TokenFiles(tmp_path), LEASES)


def short(token: str) -> str:
    """As the audit log calls a token of a file."""
    return hash_token(token)[:23]


def test_roles(authorizer):
    lease = LEASES.issue("projects/p/leases/l1", 3)
    assert authorizer.authorize(RENEW, bearer(lease)) == Identity(
        Role.LEASE, "l1", 3, frozenset({"p"})
    )
    assert authorizer.authorize(LEASE_WORK, bearer("pod-token")) == Identity(
        Role.POD, token=short("pod-token")
    )
    assert authorizer.authorize(RENEW, bearer(LEASES.issue("l1", 3))) == Identity(
        Role.LEASE, "l1", 3
    )
    for method, token in [
        (LEASE_WORK, "client-token"),
        (RENEW, "pod-token"),
        (LEASE_WORK, LEASES.issue("l1", 3)),
    ]:
        with pytest.raises(PermissionRefused) as caught:
            authorizer.authorize(method, bearer(token))
        assert token not in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "pod-token"),),
        (("authorization", "Basic pod-token"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer unknown"),),
        (("authorization-bin", b"Bearer pod-token"),),
        (("authorization", "Bearer lease.l1.3.forged"),),
    ],
)
def test_who_presents_no_known_token(authorizer, metadata):
    with pytest.raises(Unauthenticated):
        authorizer.authorize(LEASE_WORK, metadata)


def test_no_caller_outside_of_a_call():
    with pytest.raises(LookupError):
        current_caller()


def test_service_names(authorizer):
    assert authorizer.service_names == ("podracer.T",)
