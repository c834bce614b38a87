"""A tree -> dataclasses, and how mistakes are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from podracer_core.config import ByteSize, Seconds, build
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.yaml_text import parse_yaml


@dataclass(frozen=True)
class Inner:
    low: float
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidInput("low > high", violations=[FieldViolation("low", "is above high")])


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 0
    flag: bool = False
    term: Seconds = 1.0
    size: ByteSize = 0
    folder: Path | None = None
    mode: Literal["a", "b"] = "a"
    members: Literal["auto"] | int = "auto"
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    by_name: Mapping[str, Inner | float] = field(default_factory=dict)
    anything: Any = None


def _build(text: str) -> Outer:
    return build(Outer, parse_yaml(text, "f.yaml"))


def _mistakes(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        _build(text)
    return [str(violation) for violation in caught.value.violations]


def test_every_kind_of_value():
    text = """
    name: x
    count: 2e6
    flag: true
    term: 1m
    size: 1Ki
    folder: a/b
    mode: b
    members: 8
    inner: {low: 0}
    many: [{low: 0.5}, {low: 1, high: 2}]
    pair: [1, 2]
    by_name: {p: 3, q: {low: 0.1}}
    anything: [1, {x: null}]
    """
    assert _build(text) == Outer(
        "x", 2_000_000, True, 60.0, 1024, Path("a/b"), "b", 8, Inner(0.0),
        (Inner(0.5), Inner(1.0, 2.0)), (1, 2.0), {"p": 3.0, "q": Inner(0.1)}, [1, {"x": None}],
    )  # fmt: skip


def test_defaults_and_nothing_for_optional_values():
    assert _build("name: x\nfolder: null\ninner:") == Outer("x")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("count: 1.5", "count: expected a whole number, got 1.5"),
        ("count: '1'", "count: expected a whole number, got '1'"),
        ("count: true", "count: expected a whole number, got True"),
        ("count:", "count: expected a whole number, got nothing"),
        ("count: .inf", "count: expected a whole number, got inf"),
        ("flag: yes", "flag: expected true or false, got 'yes'"),
        ("flag: 1", "flag: expected true or false, got 1"),
        ("term: 10x", "term: expected a duration such as 90s, 10m or 1h30m, got '10x'"),
        ("term: true", "term: expected a duration such as 90s, 10m or 1h30m, got True"),
        ("size: -1", "size: expected a size such as 512Mi or 2Gi, got -1"),
        ("mode: c", "mode: expected a or b, got 'c'"),
        ("members: some", "members: expected auto or a whole number, got 'some'"),
        ("members: true", "members: expected auto or a whole number, got True"),
        ("inner: 3", "inner: expected a mapping, got 3"),
        ("inner: {low: x}", "inner.low: expected a number, got 'x'"),
        ("inner: {low: .nan}", "inner.low: expected a number, got nan"),
        ("inner: {}", "inner.low: is missing; expected a number"),
        ("inner: {low: 2}", "inner.low: is above high"),
        ("inner: {low: 0, hig: 2}", "inner.hig: unknown key; did you mean high?"),
        ("inner: {low: 0, x: 2}", "inner.x: unknown key; expected one of low, high"),
        ("many: {}", "many: expected a list of values, each a mapping, got an empty mapping"),
        ("many: [{low: 0}, {low: x}]", "many[1].low: expected a number, got 'x'"),
        ("pair: [1]", "pair: expected a list of 2 values, got 1 of them"),
        ("pair: [1, x]", "pair[1]: expected a number, got 'x'"),
        ("by_name: [1]", "by_name: expected a mapping, got a list"),
        ("by_name: {p: {low: x}}", "by_name.p.low: expected a number, got 'x'"),
        ("by_name: {p: x}", "by_name.p: expected a mapping or a number, got 'x'"),
        (f"mode: {'long' * 50}", f"mode: expected a or b, got '{'long' * 14}…"),
    ],
)
def test_a_mistake_is_told_with_line_field_and_what_would_be_right(line, mistake):
    assert _mistakes(f"name: x\n{line}\n") == [f"f.yaml:2: {mistake}"]


def test_all_mistakes_are_told():
    assert _mistakes("nam: x\ninner:\n  high: y\nflag: 3\n") == [
        "f.yaml:1: nam: unknown key; did you mean name or by_name?",
        "f.yaml:1: name: is missing; expected text",
        "f.yaml:2: inner.low: is missing; expected a number",
        "f.yaml:3: inner.high: expected a number, got 'y'",
        "f.yaml:4: flag: expected true or false, got 3",
    ]


@pytest.mark.parametrize(("text", "got"), [("", "nothing"), ("3", "3"), ("[1]", "a list")])
def test_a_file_of_another_shape(text, got):
    (mistake,) = _mistakes(text)
    assert mistake.startswith("f.yaml:1: expected a mapping with the keys name, count,")
    assert mistake.endswith(f"got {got}")
