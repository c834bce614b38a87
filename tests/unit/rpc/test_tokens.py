"""Token files and lease tokens: who is known, rotation, and nothing shown."""

from __future__ import annotations

import os

import pytest

from podracer_core.errors import InvalidInput, Unauthenticated, Unavailable
from podracer_platform.rpc import (
    FileToken,
    LeaseTokens,
    Role,
    TokenFiles,
    create_tokens,
    hash_token,
)
from support.errors import raises

SECRET = b"s" * 32


def test_created_tokens_are_private_and_stay(tmp_path):
    paths = create_tokens(tmp_path / "tokens")
    first = {role: path.read_text() for role, path in paths.items()}
    assert set(first) == {Role.CLIENT, Role.POD, Role.CONTROL}
    assert len(set(first.values())) == 3
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths.values())
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    assert {
        role: path.read_text() for role, path in create_tokens(tmp_path / "tokens").items()
    } == first
    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [
        "client",
        "control",
        "pod",
    ]


def test_role_of_a_token(tmp_path):
    paths = create_tokens(tmp_path)
    files = TokenFiles(tmp_path)
    for role, path in paths.items():
        assert files.find(path.read_text().strip()) == (role, None)
    assert files.find("unknown") is None
    assert files.find("") is None


def test_rotation_needs_no_restart(tmp_path):
    (tmp_path / "pod").write_text("old\n")
    files, mine = TokenFiles(tmp_path), FileToken(tmp_path / "pod")
    (tmp_path / "pod").write_text("old\n\nnewer\n")
    assert (files.find("old"), files.find("newer"), mine()) == (
        (Role.POD, None),
        (Role.POD, None),
        "newer",
    )
    (tmp_path / "pod").write_text("newer\n")
    assert (files.find("old"), files.find("newer")) == (None, (Role.POD, None))
    (tmp_path / "pod").unlink()
    assert files.find("newer") is None


def test_unreadable_and_absent_files(tmp_path):
    with raises(InvalidInput, "NO_TOKENS"):
        TokenFiles(tmp_path)
    with raises(InvalidInput, "NO_TOKENS"):
        FileToken(tmp_path / "client")
    (tmp_path / "client").mkdir()  # unreadable as a file even to root
    with raises(InvalidInput, "TOKEN_FILE_UNREADABLE", match=str(tmp_path / "client")):
        TokenFiles(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(tmp_path):
    create_tokens(tmp_path)["pod"].chmod(0)
    with pytest.raises(InvalidInput, match="read: PermissionError"):
        TokenFiles(tmp_path)


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        create_tokens(tmp_path / "file" / "tokens")


def test_lease_tokens_are_deterministic_and_verified():
    tokens = LeaseTokens(SECRET)
    token = tokens.issue("lease.with.dots-7", 42)
    assert token.startswith("lease.lease.with.dots-7.42.")
    assert tokens.issue("lease.with.dots-7", 42) == token
    assert tokens.verify(token) == ("lease.with.dots-7", 42)
    assert LeaseTokens(SECRET).verify(token) == ("lease.with.dots-7", 42)


def test_forged_lease_tokens_are_refused():
    tokens = LeaseTokens(SECRET)
    token = tokens.issue("7", 42)
    mac = token.rsplit(".", 1)[1]
    forged = [
        token[:-1],
        token + "A",
        f"lease.7.43.{mac}",
        f"lease.8.42.{mac}",
        f"lease.7.٤.{mac}",
        f"lease.7.42.{'é' * 43}",
    ]
    for text in [
        *forged,
        "",
        "lease.",
        "lease.7",
        "lease...",
        token.removeprefix("lease."),
        LeaseTokens(b"t" * 32).issue("7", 42),
    ]:
        with pytest.raises(Unauthenticated):
            tokens.verify(text)


@pytest.mark.parametrize(
    ("lease_id", "fence"), [("", 1), ("a b", 1), ("a\n", 1), ("é", 1), ("a", -1)]
)
def test_lease_ids_that_no_header_can_carry(lease_id, fence):
    with pytest.raises(InvalidInput):
        LeaseTokens(SECRET).issue(lease_id, fence)


def test_weak_secret_is_refused():
    with pytest.raises(InvalidInput):
        LeaseTokens(b"short")


def test_no_repr_shows_a_token(tmp_path):
    token = create_tokens(tmp_path)[Role.POD].read_text().strip()
    source = FileToken(tmp_path / "pod")
    assert source() == token
    for thing in (source, TokenFiles(tmp_path), LeaseTokens(token.encode())):
        shown = repr(thing) + str(thing)
        assert token not in shown


def test_open_file_warns(tmp_path, caplog):
    path = create_tokens(tmp_path)[Role.POD]
    TokenFiles(tmp_path)
    assert caplog.text == ""
    path.chmod(0o644)
    path.write_text("pod-token\n")
    TokenFiles(tmp_path)
    assert f"{path} is open to every user" in caplog.text
    assert "pod-token" not in caplog.text


def test_file_that_becomes_unreadable_says_nothing_to_callers(tmp_path):
    path = create_tokens(tmp_path)[Role.POD]
    files = TokenFiles(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(Unavailable) as caught:
        files.find("anything")
    assert str(tmp_path) not in caught.value.message


def test_a_digest_stands_for_its_token(tmp_path):
    (tmp_path / "pod").write_text(f"{hash_token('secret')}\nplain\n")
    (tmp_path / "pod").chmod(0o600)
    files = TokenFiles(tmp_path)
    assert files.find("secret") == files.find("plain") == (Role.POD, None)
    assert files.find(hash_token("secret")) is None, "who has read the file cannot use it"
    assert FileToken(tmp_path / "pod")() == "plain"
    (tmp_path / "pod").write_text(f"{hash_token('secret')}\n")
    with pytest.raises(InvalidInput, match="digest"):
        FileToken(tmp_path / "pod")


def test_a_token_may_be_for_some_projects(tmp_path):
    (tmp_path / "client").write_text(
        f"all\nsome projects/a projects/b-2\n{hash_token('hashed')} projects/c\n"
    )
    (tmp_path / "client").chmod(0o600)
    files = TokenFiles(tmp_path)
    assert files.find("all") == (Role.CLIENT, None)
    assert files.find("some") == (Role.CLIENT, frozenset({"a", "b-2"}))
    assert files.find("hashed") == (Role.CLIENT, frozenset({"c"}))


@pytest.mark.parametrize(
    "line",
    ["sha256:abc", "sha256:" + "G" * 64, "token research", "token projects/", "t projects/A"],
)
def test_a_bad_line_is_refused_without_being_shown(tmp_path, line):
    (tmp_path / "client").write_text(line)
    with raises(InvalidInput, "TOKEN_FILE_INVALID", match=r"client: after") as caught:
        TokenFiles(tmp_path)
    assert line not in str(caught.value)
