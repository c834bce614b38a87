"""What the benchmarks share: the command line, tables, runs, statistics and measured commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lab.arguments import arguments
from lab.events import Speedometer
from lab.peers import installed
from lab.processes import in_process, run_measured
from lab.report import Target, finish, spread
from lab.runs import append_lines, digest, read_lines
from lab.statistics import interval, median, paired, quantile, ratio, resampled


def test_only_the_arguments_with_a_default_are_there():
    options = arguments("what", "short", seeds=3, peers=Path("peers")).parse_args(["--quick"])
    assert vars(options) == {"quick": True, "seeds": 3, "peers": Path("peers"), "setup": False}


def test_the_last_line_says_what_was_reached(capsys):
    targets = {"fast": Target(2.0, 1.0), "small": Target(2.0, 1.0, True), "none": Target(None, 0.0)}
    finish("test", {"figure": 1}, targets)
    closing = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (closing["benchmark"], closing["figures"]) == ("test", {"figure": 1})
    assert [each["met"] for each in closing["targets"].values()] == [True, False, False]


def test_lines_are_added_behind_a_torn_one(tmp_path):
    file = tmp_path / "new" / "lines.jsonl"
    append_lines(file, [{"a": 1}])
    with file.open("a") as opened:
        opened.write('{"a": ')
    append_lines(file, [{"a": 2}, {"a": 3}])
    assert list(read_lines(tmp_path / "none", file)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_digest_is_of_the_values_and_not_of_their_order():
    assert digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1}) != digest({"a": 1})


def test_statistics_leave_out_what_is_not_known():
    assert (median([3.0, None, 1.0]), median([None]), ratio(1.0, None)) == (2.0, None, None)
    assert (spread([None]), spread([1.0, None, 3.0])) == ("–", "2 (1 – 3)")
    assert paired([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == 3.0
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([], 0.5)) == (2.0, float("inf"))
    low, high = interval(resampled([1.0] * 4, np.random.default_rng(0)).mean(-1))
    assert (low, high) == (1.0, 1.0)


def test_a_measured_command_has_its_events_and_its_childrens_memory(tmp_path):
    child = "import sys; kept = bytearray(50_000_000); print(flush=True); sys.stdin.read()"
    parent = (
        "import sys; from subprocess import PIPE, Popen; "
        "child = Popen([sys.executable, '-c', sys.argv[1]], stdin=PIPE, stdout=PIPE); "
        "child.stdout.readline(); "
        'print(\'{"event": "over"}\', flush=True); child.wait()'
    )
    told: list[dict[str, Any]] = []
    found = run_measured(
        [sys.executable, "-c", parent, child],
        tmp_path / "log",
        timeout_s=60.0,
        until=("over",),
        on_event=told.append,
    )
    assert told == [{"event": "over"}]
    assert found.need("over")[0] > 0.0
    assert (found.peak_bytes > 50_000_000, found.processes) == (True, 2)
    with pytest.raises(SystemExit, match="end came"):
        found.need("end")


def test_a_worker_gets_its_order_and_ends_with_its_answer(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import json, sys; print('…'); print(json.dumps({'got': sys.argv[2]}))")
    assert in_process(str(script), {"seed": 3}) == {"got": '{"seed": 3}'}
    script.write_text("raise SystemExit('broken')")
    with pytest.raises(SystemExit, match="broken"):
        in_process(str(script), {})


def test_a_speed_is_told_after_the_warm_up(capsys):
    speedometer = Speedometer(0.0, warm_up=2)
    assert [speedometer.is_over(steps) for steps in (0, 100, 300)] == [False, False, True]
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["env_steps_per_second"] > 0) == ("speed", True)


def test_no_peer_is_installed_where_there_is_no_environment(tmp_path):
    assert installed(tmp_path, ["ray"]) == {}
