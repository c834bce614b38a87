"""What `podracer secrets` makes, and who is given what of it."""

from __future__ import annotations

from podracer_client.secrets import create_secrets
from podracer_platform.rpc import FileToken, Role, TlsFolder, TokenFiles

GIVEN = {
    "orchestrator": "database/pgpass store/access_key store/secret_key tls/ca.pem tls/cert.pem "
    "tls/key.pem tokens/client tokens/control tokens/pod",
    "leaderboard": "database/pgpass tls/ca.pem tls/cert.pem tls/key.pem tokens/client "
    "tokens/control",
    "learner": "tls/ca.pem tls/cert.pem tls/key.pem tokens/pod",
    "worker": "tls/ca.pem tls/cert.pem tls/key.pem tokens/pod tokens/pod_keys",
    "evaluator": "tls/ca.pem tls/cert.pem tls/key.pem tokens/pod tokens/pod_keys",
    "policy": "tls/ca.pem tls/cert.pem tls/key.pem tokens/client tokens/control",
    "client": "tls/ca.pem tls/cert.pem tls/key.pem tokens/client",
    "store": "store/access_key store/root_password store/root_user store/secret_key "
    "tls/CAs/public.crt tls/private.key tls/public.crt",  # as MinIO wants them
    "database": "database/password tls/ca.pem tls/cert.pem tls/key.pem",
}


def test_each_role_is_given_what_it_needs_and_nothing_else(tmp_path):
    create_secrets(tmp_path)
    roles = tmp_path / "roles"
    found = {
        role.name: " ".join(
            sorted(str(path.relative_to(role)) for path in role.rglob("*") if path.is_file())
        )
        for role in roles.iterdir()
    }
    assert found == GIVEN
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*") if path.is_file())
    TlsFolder(roles / "worker" / "tls")
    token = FileToken(roles / "client" / "tokens" / "client")()
    assert TokenFiles(roles / "orchestrator" / "tokens").find(token) == (Role.CLIENT, None)
    password = (roles / "database" / "database" / "password").read_text()
    assert (roles / "leaderboard" / "database" / "pgpass").read_text() == f"*:*:*:*:{password}"


def test_a_second_time_nothing_changes_and_what_is_renewed_reaches_the_roles(tmp_path):
    create_secrets(tmp_path)
    assert create_secrets(tmp_path) == []
    former = tmp_path / "roles" / "learner" / "store" / "secret_key"  # as versions before gave it
    former.parent.mkdir()
    former.write_text("a key")
    (tmp_path / "tokens" / "pod").write_text("a-new-token-of-a-pod\n")
    assert {path.parent.parent.name for path in create_secrets(tmp_path)} == {
        "orchestrator", "learner", "worker", "evaluator",
    }  # fmt: skip
    assert not former.exists()
    before = (tmp_path / "roles" / "learner" / "tls" / "cert.pem").read_bytes()
    create_secrets(tmp_path, renew=True)
    assert (tmp_path / "roles" / "learner" / "tls" / "cert.pem").read_bytes() != before


def test_who_only_answers_cannot_use_the_tokens_that_it_knows(tmp_path):
    create_secrets(tmp_path)
    (tmp_path / "tokens" / "pod").write_text("old\nnew projects/research\n")
    create_secrets(tmp_path)
    for role in ("orchestrator", "leaderboard", "worker", "evaluator"):
        tokens = tmp_path / "roles" / role / "tokens"
        for name in ("pod",) if role != "leaderboard" else ("client", "control"):
            for line in (tmp_path / "tokens" / name).read_text().splitlines():
                token, *projects = line.split()
                assert token not in (tokens / name).read_text()
                found = TokenFiles(tokens).find(token)
                assert found == (Role(name), frozenset(["research"]) if projects else None)
    assert FileToken(tmp_path / "roles" / "learner" / "tokens" / "pod")() == "new"
