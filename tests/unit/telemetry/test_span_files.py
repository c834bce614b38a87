"""Files of spans: what is in them, and that they are bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path

from podracer_core.errors import InvalidInput
from podracer_platform.telemetry import ENDING, FinishedSpan, SpanContext, SpanFiles
from support.errors import raises


def finished(number: int, **attributes: str) -> FinishedSpan:
    context = SpanContext(f"{number:032x}", f"{number:016x}")
    return FinishedSpan(f"span {number}", "internal", context, "", 5, 7, attributes)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_span_is_in_the_file_at_once(tmp_path):
    files = SpanFiles(tmp_path / "traces", "learner", 1 << 20)
    files.add(finished(1, job="projects/p/jobs/j"))
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name.startswith(f"learner-{os.getpid()}-")
    header, first = lines(path)
    assert header == {"service": "learner", "process": path.name.removesuffix(ENDING)}
    assert first == {
        "trace": f"{1:032x}",
        "span": f"{1:016x}",
        "parent": "",
        "name": "span 1",
        "kind": "internal",
        "start_ns": 5,
        "end_ns": 7,
        "attributes": {"job": "projects/p/jobs/j"},
    }
    assert (tmp_path / "traces").stat().st_mode & 0o077 == 0
    files.close(1.0)
    files.add(finished(2))
    assert len(lines(path)) == 2


def test_a_full_file_becomes_the_former_one(tmp_path):
    files = SpanFiles(tmp_path, "learner", 16 * 4000)
    for number in range(100):
        files.add(finished(number))
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 2
    assert all(path.stat().st_size <= 4000 for path in paths)
    kept = [line["name"] for path in paths for line in lines(path) if "span" in line]
    assert sorted(kept) == sorted(f"span {number}" for number in range(100 - len(kept), 100))
    assert all("service" in lines(path)[0] for path in paths)


def test_a_folder_is_bounded(tmp_path):
    limit = 16 * 1000
    for number in range(60):
        files = SpanFiles(tmp_path, f"worker{number}", limit)
        for one in range(4):
            files.add(finished(one))
        files.close(1.0)
        (path,) = tmp_path.glob(f"worker{number}-*")
        os.utime(path, (number, number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    assert list(tmp_path.glob("worker59-*"))
    assert not list(tmp_path.glob("worker0-*"))


def test_who_was_swept_away_begins_anew(tmp_path):
    files = SpanFiles(tmp_path, "learner", 1 << 20)
    assert not list(tmp_path.iterdir())  # who has nothing to tell leaves nothing
    files.add(finished(0))
    (path,) = tmp_path.iterdir()
    path.unlink()
    files.add(finished(1))
    assert [line.get("name") for line in lines(path)] == [None, "span 1"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with raises(InvalidInput, "FOLDER_UNWRITABLE"):
        SpanFiles(tmp_path / "file", "learner", 1 << 20)


def test_a_disk_that_is_full_ends_the_writing_and_nothing_else(tmp_path, monkeypatch, caplog):
    files = SpanFiles(tmp_path, "learner", 1 << 20)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    files.add(finished(1))
    files.add(finished(2))
    assert caplog.text.count("stopped writing spans") == 1


def test_secrets_in_errors_are_hidden(tmp_path):
    files = SpanFiles(tmp_path, "learner", 1 << 20)
    context = SpanContext("a" * 32, "b" * 16)
    files.add(FinishedSpan("x", "internal", context, "", 1, 2, {}, "refused: token=sesame"))
    (path,) = tmp_path.iterdir()
    assert "sesame" not in path.read_text()
