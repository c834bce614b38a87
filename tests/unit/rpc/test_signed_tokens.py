"""Signed tokens: what a server accepts, and until when."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from podracer_core.errors import PermissionRefused, Unauthenticated, Unavailable
from podracer_platform.rpc import (
    CLOCK_TOLERANCE_S,
    PUBLIC_KEYS,
    REVOKED,
    Authorizer,
    Claims,
    Identity,
    LeaseTokens,
    Role,
    SignedTokens,
    TokenFiles,
    bearer,
    methods_of,
    sign,
)
from podracer_platform.telemetry import redact

KEY, OTHER = b"k" * 32, b"o" * 32
CLAIMS = Claims("7f", "ci", "client", 1000, ("a", "b"), ("orchestrator",))
TOKEN, PUBLIC = sign(KEY, CLAIMS)


@pytest.fixture
def tokens(tmp_path: Path) -> SignedTokens:
    (tmp_path / PUBLIC_KEYS).write_text(f"{PUBLIC}\n")
    return SignedTokens(tmp_path, lambda: 900.0)


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(Unauthenticated) as caught:
        call()
    assert TOKEN not in caught.value.message
    return caught.value.reason


def test_what_was_signed_is_what_is_read(tokens):
    found = tokens.verify(TOKEN, {"orchestrator"})
    assert json.loads(json.dumps(asdict(found))) == json.loads(json.dumps(asdict(CLAIMS)))
    assert redact(f"called with {TOKEN} twice") == "called with *** twice"


def test_forged_tokens_are_refused(tokens, tmp_path):
    prefix, claims, signature = TOKEN.split(".")
    more = (
        base64.urlsafe_b64encode(json.dumps(asdict(CLAIMS)).replace('"a"', '"z"').encode())
        .decode()
        .rstrip("=")
    )
    forged = [
        sign(OTHER, CLAIMS)[0], f"{prefix}.{more}.{signature}", f"{prefix}.{claims}.",
        f"{prefix}.{claims}", f"{prefix}.{claims}.{signature[:-4]}", f"{prefix}..{signature}",
        prefix, "", f"{TOKEN}A", f"{prefix}.é.\ud800",
    ]  # fmt: skip
    for text in forged:
        assert reason(lambda text=text: tokens.verify(text, {"orchestrator"})) == "UNKNOWN_TOKEN", (
            text
        )
    (tmp_path / PUBLIC_KEYS).unlink()
    assert reason(lambda: tokens.verify(TOKEN, {"orchestrator"})) == "UNKNOWN_TOKEN"


def test_it_ends_a_minute_after_its_expiry(tmp_path):
    (tmp_path / PUBLIC_KEYS).write_text(PUBLIC)
    now = [1000.0 + CLOCK_TOLERANCE_S - 1]
    tokens = SignedTokens(tmp_path, lambda: now[0])
    assert tokens.verify(TOKEN, {"orchestrator"})
    now[0] += 1
    assert reason(lambda: tokens.verify(TOKEN, {"orchestrator"})) == "TOKEN_EXPIRED"


def test_keys_and_revoked_ids_may_change_without_a_restart(tokens, tmp_path):
    token, public = sign(OTHER, CLAIMS)
    (tmp_path / PUBLIC_KEYS).write_text(f"{PUBLIC}\n{public}\n")
    assert tokens.verify(token, {"orchestrator"}).id == tokens.verify(TOKEN, {"orchestrator"}).id
    (tmp_path / PUBLIC_KEYS).write_text(f"{public}\n")
    assert reason(lambda: tokens.verify(TOKEN, {"orchestrator"})) == "UNKNOWN_TOKEN"
    (tmp_path / REVOKED).write_text("7e\n7f\n")
    assert reason(lambda: tokens.verify(token, {"orchestrator"})) == "TOKEN_REVOKED"
    (tmp_path / REVOKED).write_text("7e\n")
    assert tokens.verify(token, {"orchestrator"})


@pytest.mark.parametrize("name", [PUBLIC_KEYS, REVOKED])
def test_a_file_that_cannot_be_read_admits_nobody(tokens, tmp_path, name):
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(Unavailable) as caught:
        tokens.verify(TOKEN, {"orchestrator"})
    assert str(tmp_path) not in caught.value.message


def test_a_server_takes_its_roles_projects_and_audience(tmp_path):
    """Beside tokens of files and leases, which go on working."""
    (tmp_path / "client").write_text("plain\n")
    (tmp_path / PUBLIC_KEYS).write_text(PUBLIC)
    leases = LeaseTokens(b"s" * 32)
    orchestrator, policy = (
        Authorizer(methods_of(each), TokenFiles(tmp_path), leases)
        for each in ("orchestrator", "policy")
    )
    service = "/podracer.orchestrator.v1.JobService/"

    def token(**changed: object) -> tuple[tuple[str, str], ...]:
        values = asdict(CLAIMS) | {"expires": 1 << 40} | changed
        return bearer(sign(KEY, Claims(**values))[0])

    found = orchestrator.authorize(f"{service}CreateJob", token())
    assert found == Identity(Role.CLIENT, projects=frozenset({"a", "b"}), token="7f", name="ci")
    assert orchestrator.authorize(f"{service}CreateJob", bearer("plain")).role is Role.CLIENT
    renew = "/podracer.orchestrator.v1.PodService/RenewLease"
    assert orchestrator.authorize(renew, bearer(leases.issue("l", 1))).lease_id == "l"
    assert (
        reason(lambda: policy.authorize("/podracer.policy.v1.PolicyService/Act", token()))
        == "WRONG_AUDIENCE"
    )
    everywhere = token(audience=(), projects=())
    assert policy.authorize("/podracer.policy.v1.PolicyService/Act", everywhere).projects is None
    viewer = token(role="viewer")
    assert orchestrator.authorize(f"{service}GetJob", viewer).role is Role.VIEWER
    with pytest.raises(PermissionRefused, match="token's role"):
        orchestrator.authorize(f"{service}CancelJob", viewer)
