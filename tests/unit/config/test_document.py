"""YAML in, a tree with lines out; hostile files are refused."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.yaml_text import MAX_FILE_BYTES, load_yaml, parse_yaml
from support.errors import raises


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1.0E+2", 100.0), (".5", 0.5), ("-2_000_000", -2_000_000), ("0x1F", 31),
        ("0o17", 15), ("007", 7), ("true", True), ("False", False), ("yes", "yes"), ("on", "on"),
        ("NO", "NO"), ("~", None), ("", None), ("null", None), ("10m", "10m"), ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"), ("'1'", "1"), ('"true"', "true"), (".inf", math.inf),
        ("-.Inf", -math.inf), ("1_", 1), ("_1", "_1"), ("1.2.3", "1.2.3"), ("9" * 5000, "9" * 5000),
        ("9" * 400, "9" * 400), ("0x" + "f" * 400, "0x" + "f" * 400), ("|\n  a\n  b", "a\nb"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = parse_yaml(f"key: {text}", "f.yaml").root.plain()["key"]
    assert found == value
    assert type(found) is type(value)


TEXT = """\
# a comment
name: x

search:
  space:
    gamma: {choice: [0.9,
       0.99]}
    ppo.horizon: 32
  algorithms:
    - ppo
    - sac
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("name", 2), ("search", 4), ("search.space", 5), ("search.space.gamma.choice[1]", 7),
        ("search.space.ppo.horizon", 8), ("search.algorithms[1]", 11), ("search.algorithms[9]", 9),
        ("search.nothing.here", 4), ("nowhere", 2), ("", 2),
    ],
)  # fmt: skip
def test_fields_are_found_at_their_lines(path, line):
    assert parse_yaml(TEXT, "f.yaml").locate(FieldViolation(path, "m")).line == line


def test_violations_are_told_in_the_order_of_the_file():
    document = parse_yaml(TEXT, "f.yaml")
    error = document.refuse(
        [FieldViolation("search.algorithms", "late"), FieldViolation("name", "early")]
    )
    assert (
        str(error)
        == "f.yaml has 2 mistakes:\n  f.yaml:2: name: early\n  f.yaml:9: search.algorithms: late"
    )
    assert [violation.field for violation in error.violations] == ["name", "search.algorithms"]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml:3: key 'a' is there twice, first in line 1"),
        ("a: 1\n---\nb: 2", "f.yaml:2: a second document starts here"),
        ("a: &x [*x]", "unknown alias *x"),
        ("a: *x", "unknown alias *x"),
        (BOMB, "more than 20000 values"),
        ("[" * 100_000, "nested more than 32 levels deep"),
        ("{a: " * 100_000, "nested more than 32 levels deep"),
        ("a: !!python/object/apply:os.system [echo]", "tags are not allowed"),
        ("a: !!int 3", "tags are not allowed"),
        ("base: &b {x: 1}\nmore: {<<: *b}", "keys must be plain words"),
        ("{[1]: 2}", "keys must be plain words"),
        ("a: [1\nb: 2", "f.yaml:2: not valid YAML"),
        ("a:\n\t- 1", "f.yaml:2: not valid YAML"),
        ("a: 'x", "not valid YAML"),
        ("a: \0", "not valid YAML"),
        ("a: \x07", "not valid YAML"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(InvalidInput) as caught:
        parse_yaml(text, "f.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_small_aliases_are_allowed():
    assert parse_yaml("a: &a [1, 2]\nb: *a", "f").root.plain() == {"a": [1, 2], "b": [1, 2]}


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        parse_yaml(text, "f.yaml").root.plain()
    except InvalidInput as error:
        assert str(error).startswith("f.yaml:")


WORDS = st.text("ab c'\"\\ü:#", max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_is_yaml(value):
    text = json.dumps(value).replace("Infinity", ".inf")
    assert parse_yaml(text, "f").root.plain() == value


class TestFiles:
    def test_a_file_with_a_mark_of_its_encoding(self, tmp_path):
        (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfname: \xc3\xbc\r\n")
        assert load_yaml(tmp_path / "f.yaml").root.plain() == {"name": "ü"}

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path):
        path = tmp_path / "f.yaml"
        with path.open("wb") as file:
            file.truncate(100 << 20)
        with raises(InvalidInput, "FILE_TOO_LARGE", match=r"large: 100\.0 MiB"):
            load_yaml(path)

    def test_a_device_without_end_is_not_read_for_ever(self):
        with raises(InvalidInput, "FILE_TOO_LARGE", match="too large"):
            load_yaml(Path("/dev/zero"))

    def test_a_pipe_is_read(self):
        reader, writer = os.pipe()
        os.write(writer, b"a: 1")
        os.close(writer)
        try:
            assert load_yaml(Path(f"/dev/fd/{reader}")).root.plain() == {"a": 1}
        finally:
            os.close(reader)

    @pytest.mark.parametrize("data", [b"\xff\xfea\0", b"name: \xe4", b"\x89PNG\r\n\x1a\n\0\0"])
    def test_other_encodings_and_binary_files_are_refused(self, tmp_path, data):
        (tmp_path / "f.yaml").write_bytes(data)
        with raises(InvalidInput, "UNREADABLE_FILE"):
            load_yaml(tmp_path / "f.yaml")

    @pytest.mark.parametrize(
        ("name", "why"), [("none.yaml", "No such file"), (".", "Is a directory"), ("a\0b", "null")]
    )
    def test_what_cannot_be_read_is_told(self, tmp_path, name, why):
        with pytest.raises(InvalidInput, match=why):
            load_yaml(tmp_path / name)

    def test_the_limit_is_a_mebibyte(self, tmp_path):
        path = tmp_path / "f.yaml"
        path.write_bytes(b"#" * (MAX_FILE_BYTES - 1) + b"\n")
        assert load_yaml(path).root.plain() is None
