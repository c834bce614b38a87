"""`podracer trace`: from files of spans to a tree and a Chrome trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podracer_client.command import application
from podracer_client.traces import (
    Frame,
    Trace,
    TraceSpan,
    chrome_trace,
    flame_of,
    flame_text,
    read_trace,
)
from podracer_core.errors import InvalidInput, NotFound
from support.errors import raises

JOB = "projects/default/jobs/cartpole-x7"
SECOND = 1_000_000_000


def write(folder: Path, service: str, *spans: dict[str, object]) -> Path:
    path = folder / f"{service}-1-abc.spans.jsonl"
    header = {"service": service, "process": f"{service}-1-abc"}
    path.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (header, *spans))
    )
    return path


def span(
    name: str, span_id: str, parent: str, begin_s: float, end_s: float, **attributes: object
) -> dict[str, object]:
    return {
        "trace": "a" * 32,
        "span": span_id,
        "parent": parent,
        "name": name,
        "kind": "internal",
        "start_ns": int(begin_s * SECOND),
        "end_ns": int(end_s * SECOND),
        "attributes": {key.replace("__", "."): value for key, value in attributes.items()},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job of one round of 10 s: 60 iterations, of which one was recorded."""
    write(
        tmp_path,
        "orchestrator",
        span("JobService/CreateJob", "1", "", 0.0, 0.1, job=JOB),
        span("grant", "2", "1", 0.2, 0.21, job=JOB),
    )
    write(
        tmp_path,
        "learner",
        span(
            "train",
            "3",
            "2",
            1.0,
            11.0,
            job=JOB,
            iterations=60,
            seconds__collect=6.0,
            seconds__update=3.0,
        ),
        span("set up", "4", "3", 1.0, 2.0),
        span("collect", "5", "3", 2.0, 2.2, sampled=True),
        span("update", "6", "3", 2.2, 2.3, sampled=True),
        span("gradient steps", "7", "6", 2.22, 2.3),
    )
    write(tmp_path, "worker", span("collect rollout", "8", "5", 2.05, 2.2))
    return tmp_path


def frames(frame: Frame) -> dict[str, Frame]:
    found = {frame.name: frame}
    for child in frame.children:
        found |= frames(child)
    return found


def test_phases_of_a_round_are_made_of_what_was_looked_at(folder):
    trace = read_trace(folder, "cartpole-x7")
    assert trace.job == JOB
    assert trace.seconds == pytest.approx(11.0)
    flame = flame_of(trace)
    found = frames(flame)
    assert found["train"].seconds == pytest.approx(10.0)
    assert [child.name for child in found["train"].children] == ["collect", "update", "set up"]
    assert found["collect"].seconds == pytest.approx(6.0)
    assert found["update"].seconds == pytest.approx(3.0)
    assert not found["update"].is_estimated
    # 0.15 s of the 0.2 s that were looked at, so three quarters of 6 s
    rollout = found["collect rollout"]
    assert (rollout.service, rollout.seconds, rollout.is_estimated) == (
        "worker",
        pytest.approx(4.5),
        True,
    )
    assert found["gradient steps"].seconds == pytest.approx(3.0 * 0.8)
    assert sum(child.seconds for child in found["train"].children) == pytest.approx(10.0)
    assert flame.seconds == found["JobService/CreateJob"].seconds == pytest.approx(10.0)


def test_rounds_are_one_frame(folder):
    write(
        folder,
        "learner2",
        span("train", "33", "2", 1.0, 5.0, job=JOB, iterations=9, seconds__update=4.0),
        span("set up", "34", "3", 1.0, 1.5) | {"error": "NotFound: x"},
    )
    path = folder / "learner2-1-abc.spans.jsonl"
    path.write_text(path.read_text().replace('"learner2"', '"learner"'))
    found = frames(flame_of(read_trace(folder, JOB)))
    assert (found["train"].count, found["train"].seconds) == (2, pytest.approx(14.5))
    assert found["update"].seconds == pytest.approx(7.0)
    assert (found["set up"].count, found["set up"].errors) == (2, 1)


def test_the_text_is_a_tree(folder):
    trace = read_trace(folder, JOB)
    text = flame_text(trace, flame_of(trace))
    lines = text.splitlines()
    assert lines[0] == f"{JOB}: 11.0 s, 10.0 s of work in 3 processes"
    assert re.search(r"^ +10\.00  100\.0% +1 +train +learner$", text, re.MULTILINE)
    assert re.search(r"^ +4\.50 +45\.0% +~collect rollout +worker$", text, re.MULTILINE)
    depths = {
        line[27:].strip().split("  ")[0].lstrip("~"): len(line[27:]) - len(line[27:].lstrip())
        for line in lines
    }
    assert depths["train"] < depths["update"] < depths["gradient steps"]


def test_the_chrome_trace_has_every_span(folder):
    write(folder, "evaluator", span("video", "9", "3", 3.0, 4.0) | {"error": "NotFound: x"})
    found = json.loads(json.dumps(chrome_trace(read_trace(folder, JOB))))
    named = {one["pid"]: one["args"]["name"] for one in found["traceEvents"] if one["ph"] == "M"}
    spans = {one["name"]: one for one in found["traceEvents"] if one["ph"] == "X"}
    assert len(spans) == 9
    assert {named[one["pid"]] for one in spans.values()} == {
        *("orchestrator-1-abc", "learner-1-abc", "worker-1-abc", "evaluator-1-abc")
    }
    assert (spans["train"]["ts"], spans["train"]["dur"]) == (1e6, 1e7)
    assert spans["train"]["args"]["iterations"] == 60
    assert spans["video"]["args"]["error"] == "NotFound: x"


def test_spans_of_a_row_enclose_each_other_or_are_apart(folder):
    write(
        folder,
        "worker",
        *(span("x", f"m{number}", "3", 0.1 * number, 0.1 * number + 1.0) for number in range(30)),
    )
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in chrome_trace(read_trace(folder, JOB))["traceEvents"]:
        if one["ph"] == "X":
            rows.setdefault((one["pid"], one["tid"]), []).append(
                (one["ts"], one["ts"] + one["dur"])
            )
    assert 10 <= max(row for _, row in rows) + 1 <= 12
    for spans in rows.values():
        for begin, end in spans:
            assert not [other for other in spans if begin < other[0] < end < other[1]]


def test_lines_that_were_cut_off_are_left_out(folder):
    path = folder / "learner-1-abc.spans.jsonl"
    path.write_text(path.read_text() + '{"trace":"' + "a" * 32 + '","span":"99","na')
    assert len(read_trace(folder, JOB).spans) == 8


def test_another_jobs_spans_are_not_looked_at(folder):
    other = span("JobService/CreateJob", "1", "", 0.0, 9.0, job="projects/default/jobs/other") | {
        "trace": "c" * 32
    }
    write(folder, "orchestrator2", other)
    assert len(read_trace(folder, JOB).spans) == 8
    assert len(read_trace(folder, "other").spans) == 1


def test_a_job_without_a_trace(folder):
    with raises(NotFound, "NO_TRACE", match="cartpole-x7"):
        read_trace(folder, "missing-1")
    with raises(NotFound, "NO_TRACE", match="`podracer run`"):
        read_trace(folder / "missing", JOB)
    with raises(InvalidInput, "INVALID_NAME", field="job"):
        read_trace(folder, "No Job")


def test_the_command(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "runs").mkdir()
    (folder / "runs" / "traces").symlink_to(folder)
    shown = CliRunner().invoke(application, ["trace", "cartpole-x7"])
    assert shown.exit_code == 0, shown.output
    assert "gradient steps" in shown.output
    assert "wrote cartpole-x7-trace.json" in shown.output
    assert len(json.loads((folder / "cartpole-x7-trace.json").read_text())["traceEvents"]) == 3 + 8
    as_json = CliRunner().invoke(
        application, ["trace", JOB, "x.json", "--traces", str(folder), "--json"]
    )
    assert json.loads(as_json.output)["spans"] == 8


def test_a_trace_of_one_instant():
    one = TraceSpan("orchestrator", "o-1", "1", "", "JobService/CreateJob", 5, 5, {"job": JOB}, "")
    assert chrome_trace(Trace(JOB, [one]))["traceEvents"][-1]["dur"] == 0
