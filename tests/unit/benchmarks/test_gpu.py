"""What benchmarks/gpu.py makes of its parts; that they measure is shown by running them on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu

SUITE = """<testsuites><testsuite>
<testcase classname="tests.one" name="test_good"/>
<testcase classname="tests.one" name="test_left_out"><skipped message="no"/></testcase>
<testcase classname="tests.two" name="test_bad"><failure message="AssertionError: 1 is not 2&#10;more"/></testcase>
</testsuite></testsuites>"""
CLOSING = {
    "benchmark": "cuda_training",
    "figures": {"device": "one", "shared": {"1 MB": {"streamed_us": 12.5}}},
    "targets": {"steps/s": {"value": 2.0e6, "target": 1.3e7, "met": False}},
}


def program(name: str, report: Path) -> list[str]:
    """Stands for the programs: the suite, one that ends well, one that crashes and one that is too slow."""
    scripts = {
        "tests": f"open({str(report)!r}, 'w').write({SUITE!r}); raise SystemExit(1)",
        "cuda_training": f"print('a table'); print({json.dumps(CLOSING)!r})",
        "cuda_environments": "raise SystemExit('no driver')",
        "carriers": "import signal; print('begun', flush=True); signal.pause()",
    }
    return [sys.executable, "-c", scripts[name]]


def test_failures_come_first_and_every_figure_is_in_the_table_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "command", program)
    monkeypatch.setattr(gpu, "PARTS", {"cuda_training": 60.0, "cuda_environments": 60.0, "carriers": 0.2})
    path = tmp_path / "runs" / "gpu.json"
    assert gpu.run(path, "a GPU") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("tests: 1 passed, 1 skipped; 1 tests fail")
    assert lines[2] == "  FAILS  tests.two.test_bad: AssertionError: 1 is not 2"
    table = "\n".join(lines[lines.index("All figures") :])
    for expected in ("shared · 1 MB · streamed_us", "12.5", "2,000,000", "13,000,000", "no driver", "longer than 0"):
        assert expected in table
    record = json.loads(path.read_text())
    assert record["device"] == "a GPU"
    assert list(record["parts"]) == ["tests", "cuda_training", "cuda_environments", "carriers"]
    assert record["parts"]["cuda_training"]["targets"] == CLOSING["targets"]
    assert record["parts"]["tests"]["failures"] == {"tests.two.test_bad": "AssertionError: 1 is not 2"}


def test_all_of_it_takes_ten_minutes_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry-run"])
    gpu.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["240", "150", "180", "90"]
    assert gpu.LIMIT_S == 600.0
