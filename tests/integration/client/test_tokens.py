"""`podracer token`: the commands of docs/access.md, and what servers make of what they issue."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode

import pytest

from podracer_client.secrets import ClusterSecrets
from podracer_core.errors import PermissionRefused, Unauthenticated
from podracer_platform.kubernetes import ClusterApi, read_kubeconfig
from podracer_platform.rpc import (
    PUBLIC_KEYS,
    REVOKED,
    Authorizer,
    Identity,
    TokenFiles,
    bearer,
    methods_of,
)
from support.commands import run_here
from support.documents import blocks
from support.errors import raises
from support.kubernetes_api import Api
from support.kubernetes_store import Store
from support.processes import ROOT

GET, CANCEL = (f"/podracer.orchestrator.v1.JobService/{name}" for name in ("GetJob", "CancelJob"))


def test_the_documented_commands(tmp_path):
    (commands,) = blocks(
        (ROOT / "docs/access.md").read_text().split("## Signed tokens\n")[1].split("\n## ")[0], "sh"
    )
    printed = {}
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "podracer"
        ended = run_here(*arguments, cwd=tmp_path)
        assert ended.returncode == 0, (line, ended.stderr)
        printed[" ".join(arguments[:3])] = ended.stdout
    secrets = tmp_path / "secrets"
    orchestrator = Authorizer(
        methods_of("orchestrator"), TokenFiles(secrets / "roles" / "orchestrator" / "tokens")
    )
    anna, ci = (bearer(printed[f"token create {name}"].strip()) for name in ("anna", "ci"))
    found = orchestrator.authorize(CANCEL, ci)
    assert found == Identity(found.role, token=found.token, name="ci")
    with raises(Unauthenticated, "TOKEN_REVOKED"):
        orchestrator.authorize(GET, anna)
    listed = [
        line.split() for line in run_here("token", "list", "--dir", secrets, cwd=tmp_path).lines
    ]
    assert [row[1:5] + row[-1:] for row in listed] == [
        ["name", "role", "projects", "audience", "state"],
        ["anna", "viewer", "research", "all", "revoked"],
        ["ci", "client", "all", "all", "valid"],
    ]
    (secrets / "tokens" / REVOKED).unlink()
    run_here("secrets", secrets, cwd=tmp_path)
    for role in ("leaderboard", "learner", "worker", "evaluator", "policy"):
        assert (secrets / "roles" / role / "tokens" / PUBLIC_KEYS).read_text()
    key = (secrets / "signing" / "key").read_bytes().strip()
    assert not [
        path
        for path in (secrets / "roles").rglob("*")
        if path.is_file() and key in path.read_bytes()
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.rglob("*") if path.is_file())
    shown = run_here("token", "--tokens", secrets / "tokens", cwd=tmp_path).stdout
    assert shown == (secrets / "tokens" / "client").read_text()


def test_the_state_folder_of_up_issues_too(tmp_path):
    missing = run_here("token", "create", "anna", cwd=tmp_path)
    assert missing.returncode == 2
    assert (
        "no tokens in runs: expected a folder of `podracer secrets` or `podracer up`"
        in missing.stderr
    )
    (tmp_path / "runs" / "tokens").mkdir(parents=True)
    made = run_here(
        "token", "create", "anna", "--role", "viewer", "--audience", "orchestrator", cwd=tmp_path
    )
    orchestrator, policy = (
        Authorizer(methods_of(server), TokenFiles(tmp_path / "runs" / "tokens"))
        for server in ("orchestrator", "policy")
    )
    assert orchestrator.authorize(GET, bearer(made.stdout.strip())).name == "anna"
    with pytest.raises(PermissionRefused, match="token's role"):
        orchestrator.authorize(CANCEL, bearer(made.stdout.strip()))
    with raises(Unauthenticated, "WRONG_AUDIENCE"):
        policy.authorize(
            "/podracer.policy.v1.PolicyService/ListPolicies", bearer(made.stdout.strip())
        )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["create", "Anna B"], "'Anna B' is not a DNS label"),
        (
            ["create", "anna", "--role", "lease"],
            "role: expected one of client, pod, control, viewer, got 'lease'",
        ),
        (
            ["create", "anna", "--project", "research"],
            "'research' is not the name of a project: expected projects/p",
        ),
        (["create", "anna", "--audience", "web"], "audience: expected one of orchestrator, "),
        (["revoke", "anna"], "no token 'anna' was issued from runs"),
    ],
)
def test_what_cannot_be_is_told(tmp_path, arguments, problem):
    (tmp_path / "runs" / "tokens").mkdir(parents=True)
    ended = run_here("token", *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert problem in re.sub(r"\s+", " ", ended.stderr)


def test_a_cluster_gets_public_keys_and_revoked_ids_from_one_secret(tmp_path):
    api = Api(
        Store(),
        {
            "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "get", "patch"]}
            ]
        },
    )
    api.start()
    try:
        secrets = ClusterSecrets(
            ClusterApi(read_kubeconfig(api.kubeconfig(tmp_path / "config"))), [], [], 365
        )
        secrets.ensure()
        patch = {PUBLIC_KEYS: b64encode(b"key\n").decode(), REVOKED: b64encode(b"7f\n").decode()}
        api.store.change("secrets", "podracer-tokens", lambda each: each["data"].update(patch))
        secrets.ensure()
        api.calls.clear()
        secrets.ensure()
        assert "patch" not in {verb for verb, _ in api.calls}
        for name in ("orchestrator", "leaderboard", "learner", "policy", "sidecar"):
            assert (
                patch.items() <= api.store.get("secrets", f"podracer-tokens-{name}")["data"].items()
            )
        assert PUBLIC_KEYS not in api.store.get("secrets", "podracer-tokens-client")["data"]
    finally:
        api.stop()
