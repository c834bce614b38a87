"""`podracer secrets --kubernetes` against an API server: what is missing is made, what is there
stays."""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from podracer_client import secrets
from podracer_client.secrets import ClusterSecrets, create_secrets, keep
from podracer_core.errors import PermissionRefused
from podracer_platform.kubernetes import ClusterApi, read_kubeconfig
from podracer_platform.rpc import FileToken, TokenFiles, hash_tokens
from support.commands import run_here
from support.kubernetes_api import NAMESPACE, Api
from support.kubernetes_store import ApiError, Store
from support.processes import wait_until

TOKENS = {
    "orchestrator": {"client", "pod", "control"},
    "leaderboard": {"client", "control"},
    "learner": {"pod"},
    "sidecar": {"pod", "pod_keys"},
    "policy": {"client", "control"},
    "client": {"client"},
}
ROLES = ("orchestrator", "leaderboard", "learner", "policy", "client", "store")
NAMES = {
    "podracer-tokens", "podracer-authority", "podracer-s3", "podracer-minio", "podracer-web",
    *(f"podracer-tokens-{name}" for name in TOKENS),
    *(f"podracer-tls-{role}" for role in ROLES),
}  # fmt: skip
ROLE = {
    "rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "verbs": ["get", "patch"],
            "resourceNames": sorted(NAMES),
        },
    ]
}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api(Store(), ROLE)
    api.start()
    yield api
    api.stop()


@pytest.fixture
def config(api: Api, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def deployment(config: Path) -> ClusterSecrets:
    return ClusterSecrets(ClusterApi(read_kubeconfig(config)), [], [], 365)


def data(api: Api, name: str) -> dict[str, bytes]:
    return {key: b64decode(value) for key, value in api.store.get("secrets", name)["data"].items()}


def everything(api: Api) -> dict[str, Any]:
    return {secret["metadata"]["name"]: secret["data"] for secret in api.store.find("secrets")}


def put(api: Api, name: str, content: dict[str, bytes], kind: str = "Opaque") -> None:
    body = {"metadata": {"name": name}, "type": kind}
    body["data"] = {key: b64encode(value).decode() for key, value in content.items()}
    api.store.create("secrets", NAMESPACE, body)


def test_the_command_makes_what_is_missing_and_keeps_what_is_there(api, config, tmp_path):
    put(api, "podracer-s3", {"access-key": b"mine", "secret-key": b"mine"})
    command = ("secrets", "--kubernetes", "--once", "--kubeconfig", str(config))
    first = run_here(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "created the Secret podracer-authority" in first.stderr
    made = everything(api)
    assert set(made) == NAMES
    assert data(api, "podracer-s3") == {"access-key": b"mine", "secret-key": b"mine"}
    for name, keys in TOKENS.items():
        assert set(made[f"podracer-tokens-{name}"]) == keys
        folder = tmp_path / name
        folder.mkdir()
        for key, content in data(api, f"podracer-tokens-{name}").items():
            (folder / key).write_bytes(content)
            assert content.decode().strip() not in first.stderr
    token = FileToken(tmp_path / "client" / "client")()
    assert all(TokenFiles(tmp_path / name).find(token) for name in ("orchestrator", "leaderboard"))
    assert not [
        secret for secret in api.store.find("secrets") if secret["metadata"].get("ownerReferences")
    ]
    assert api.store.get("secrets", "podracer-tls-learner")["type"] == "kubernetes.io/tls"
    api.store.remove("secrets", "podracer-tokens-learner")
    assert run_here(*command, cwd=tmp_path).returncode == 0
    assert everything(api) == made


def test_certificates_are_renewed_before_they_end_and_all_else_stays(api, config, deployment):
    ClusterSecrets(ClusterApi(read_kubeconfig(config)), [], [], 1).ensure()
    before = everything(api)
    short = data(api, "podracer-tls-learner")["tls.crt"]
    deployment.ensure()
    assert everything(api) == before
    assert "patch" not in {verb for verb, _ in api.calls}
    api.store.change(
        "secrets", "podracer-tls-learner", lambda each: each["data"].update(other="bWluZQ==")
    )
    deployment.ensure(renew=True)
    after = everything(api)
    assert {name for name in after if after[name] != before[name]} == {
        f"podracer-tls-{role}" for role in ROLES
    }
    renewed = data(api, "podracer-tls-learner")
    assert renewed["other"] == b"mine"
    days = [
        (found.not_valid_after_utc - found.not_valid_before_utc).days
        for found in map(x509.load_pem_x509_certificate, (short, renewed["tls.crt"]))
    ]
    assert days == [1, 365]


def test_a_third_of_its_time_before_its_end_a_certificate_is_renewed(api, deployment, monkeypatch):
    deployment.ensure()
    certificate = x509.load_pem_x509_certificate(data(api, "podracer-tls-client")["tls.crt"])
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc

    class Clock(secrets.datetime):  # type: ignore[misc, name-defined]
        now_is = begin + (end - begin) * 0.6

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.now_is

    monkeypatch.setattr(secrets, "datetime", Clock)
    deployment.ensure()
    assert ("patch", "secrets") not in api.calls
    Clock.now_is = begin + (end - begin) * 0.7
    deployment.ensure()
    assert api.calls.count(("patch", "secrets")) == len(ROLES)


def test_secrets_that_were_made_otherwise_are_taken_up(api, deployment, tmp_path, caplog):
    """Those of `podracer secrets DIR`: without the authority's key no certificate can be made that
    fits theirs."""
    create_secrets(tmp_path)
    for name in ("orchestrator", "learner"):
        tokens = {
            path.name: path.read_bytes()
            for path in (tmp_path / "roles" / name / "tokens").iterdir()
        }
        put(api, f"podracer-tokens-{name}", tokens)
    tls = tmp_path / "tls" / "learner"
    files = {"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"}
    put(
        api, "podracer-tls-learner", {key: (tls / file).read_bytes() for key, file in files.items()}
    )
    deployment.ensure()
    deployment.ensure()
    for role in ("client", "pod", "control"):
        assert data(api, "podracer-tokens")[role] == (tmp_path / "tokens" / role).read_bytes()
    hashed = hash_tokens((tmp_path / "tokens" / "pod").read_text())
    assert data(api, "podracer-tokens-sidecar")["pod"].decode() == hashed
    assert caplog.text.count("the Secret podracer-authority of the authority") == 1
    assert "podracer-tls-client" not in everything(api)
    authority = tmp_path / "tls" / "ca"
    put(
        api,
        "podracer-authority",
        {
            "tls.crt": (authority / "ca.pem").read_bytes(),
            "tls.key": (authority / "key.pem").read_bytes(),
        },
    )
    deployment.ensure()
    assert set(everything(api)) == NAMES
    assert data(api, "podracer-tls-client")["ca.crt"] == data(api, "podracer-tls-learner")["ca.crt"]


def test_certificates_and_keys_that_something_else_makes_are_left_to_it(api, config):
    patterns = ["podracer-tls-*", "podracer-s3", "podracer-minio"]
    ClusterSecrets(ClusterApi(read_kubeconfig(config)), patterns, [], 365).ensure()
    assert set(everything(api)) == {
        "podracer-tokens",
        "podracer-web",
        *(f"podracer-tokens-{name}" for name in TOKENS),
    }


def test_who_comes_second_takes_what_the_first_has_made(api, deployment):
    taken = ApiError(409, "AlreadyExists", 'secrets "podracer-tokens" already exists')
    api.lost["create", "secrets"] = [taken]  # made meanwhile, by another one
    deployment.ensure()
    digest = hash_tokens(data(api, "podracer-tokens")["pod"].decode()).encode()
    assert data(api, "podracer-tokens-orchestrator")["pod"] == digest


def test_it_waits_for_an_api_server_that_is_away_and_makes_again_what_is_deleted(
    api, deployment, monkeypatch, caplog
):
    monkeypatch.setattr(secrets, "LOOK_S", 0.05)
    api.faults["get", "secrets"] = [ApiError(503, "ServiceUnavailable", "not yet")]
    stop = threading.Event()
    thread = threading.Thread(
        target=keep, args=(deployment, stop), kwargs={"once": False, "renew": False}
    )
    thread.start()
    try:
        wait_until(lambda: set(everything(api)) == NAMES, 60, "every Secret")
        assert "retrying: get secrets podracer-tokens" in caplog.text
        api.store.remove("secrets", "podracer-tls-policy")
        wait_until(lambda: "podracer-tls-policy" in everything(api), 60, "the one that was deleted")
    finally:
        stop.set()
        thread.join(60)


def test_once_without_leave_ends_with_what_the_server_says(api, deployment):
    api.role = {"rules": ROLE["rules"][1:]}
    with pytest.raises(PermissionRefused, match='resource "secrets"'):
        keep(deployment, threading.Event(), once=True, renew=False)
