"""What benchmarks/gpu.py queues, keeps and runs; its figures come from a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu


def record(row: str, system: str = "ours", date: str = "2026-01-01", **more: Any) -> dict[str, Any]:
    about = {
        "row": row,
        "system": system,
        "date": date,
        "commit": "new",
        "figures": {},
        "chip": "H",
    }
    return about | {"return": 1.0, "peak_memory_mib": 1} | more


def run_tiny(monkeypatch: pytest.MonkeyPatch, results: Path, *rows: str) -> None:
    words = ["gpu.py", "--tiny", "--device", "cpu", "--results", str(results), "--rows", *rows]
    monkeypatch.setattr(sys, "argv", words)
    gpu.main()


def test_what_was_never_measured_comes_first_then_older_code_then_older_figures():
    rows = [
        row for row in gpu.ROWS if row.name in ("cartpole", "cohort", "start", "ant_speed", "sac")
    ]
    older = [
        record(row, date=date, commit="old")
        for row, date in zip(("cohort", "cohort", "ant_speed"), "243", strict=True)
    ]
    records = [record("cartpole", date="3"), record("start", date="2"), *older]
    assert [row.name for row in gpu.queue(rows, records, "new")] == [
        "sac",
        "ant_speed",
        "cohort",
        "start",
        "cartpole",
    ]


def test_a_dry_run_lists_every_row_and_says_why_one_has_to_wait(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "--dry-run", "--minutes", "4", "--results", str(tmp_path / "none")]
    )
    gpu.main()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[4:]}
    assert (
        list(lines) == [row.name for row in gpu.ROWS]
        and "rsl_rl yet" in lines["go1"]
        and "too long" in lines["hopper"]
    )


def test_the_table_has_medians_of_the_newest_records_of_a_chip(capsys):
    rows = [row for row in gpu.ROWS if row.name in ("cartpole", "cohort")]
    paces = [*(("overlapping", pace) for pace in (9e9, 50e6, 70e6, 80e6)), ("PureJaxRL", 50e6)]
    records = [record("cartpole", name, figures={"steps/s": value}) for name, value in paces]
    gpu._report(
        rows,
        [record("cartpole", "overlapping", chip="old", figures={"steps/s": 1.0}), *records],
        True,
    )
    targets = json.loads(capsys.readouterr().out.splitlines()[-1])["targets"]
    met = {
        name.split(": ")[1]: (target["value"], target["met"]) for name, target in targets.items()
    }
    assert met["overlapping, steps/s"] == (70e6, True)
    assert met["overlapping, steps/s ÷ cartpole PureJaxRL"] == (1.4, True)
    assert met["lock-step, steps/s ÷ cartpole lock-step"] == (None, False)


def test_a_run_after_one_that_was_cut_begins_with_the_other_rows(monkeypatch, tmp_path):
    def cut(row: gpu.Row, *arguments: Any) -> Any:
        if row.name == "cohort":
            raise KeyboardInterrupt
        return measured(row, *arguments)

    results, measured = tmp_path / "gpu.jsonl", gpu._measured
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(gpu, "_measured", cut)
        run_tiny(monkeypatch, results, "cartpole", "cohort")
    with results.open("a") as file:
        file.write('{"row": "coh\n')
    assert [each["row"] for each in gpu.read_lines(results)] == ["cartpole", "cartpole"]
    run_tiny(monkeypatch, results, "cartpole", "cohort")
    found = [(each["row"], each["seed"]) for each in gpu.read_lines(results)]
    assert found == [*[("cartpole", 0)] * 2, ("cohort", 0), *[("cartpole", 1)] * 2]


@pytest.mark.thorough
@pytest.mark.parametrize("row", [row for row in gpu.ROWS if row.systems], ids=lambda row: row.name)
def test_every_row_runs_in_tiny_form(monkeypatch, tmp_path, row):
    run_tiny(monkeypatch, tmp_path / "gpu.jsonl", row.name)
    assert {each["system"] for each in gpu.read_lines(tmp_path / "gpu.jsonl")} == {*row.systems} - {
        "PureJaxRL"
    }
