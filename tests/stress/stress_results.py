"""A plugin of pytest: one JSON line for each test's outcome in STRESS_RESULTS; what stands there
already is left out.

Lines are of one round, STRESS_ROUND. The texts of failures go to the file of the same name that
ends in `.txt`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROUND, RESULTS = "STRESS_ROUND", "STRESS_RESULTS"


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of results; a line that a killed process left unfinished does not
    count."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


class _Results:
    """For the process that hands out the tests: it hears of every outcome."""

    def __init__(self, file: Path, round_number: int) -> None:
        self._file, self._round = file, round_number
        self.done = [
            line["test"]
            for line in read_lines(file)
            if line.get("round") == round_number and "test" in line
        ]
        self._outcomes: dict[str, list[pytest.TestReport]] = defaultdict(list)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["stress_done"] = self.done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self._outcomes[report.nodeid]
        reports.append(report)
        # a process of xdist that died reports a phase of its own name
        if report.when in ("setup", "call"):
            return
        del self._outcomes[report.nodeid]
        failed = [each for each in reports if each.failed]
        outcome = (
            "failed" if failed else "skipped" if any(each.skipped for each in reports) else "passed"
        )
        test, duration_s = _name(report.nodeid), round(sum(each.duration for each in reports), 2)
        with self._file.with_suffix(".txt").open("a") as texts:
            for each in failed:
                texts.write(
                    f"{'=' * 120}\nround {self._round}: {test} ({each.when})\n{each.longreprtext}\n"
                )
                texts.writelines(f"{'-' * 40} {title}\n{text}\n" for title, text in each.sections)
        line = {"round": self._round, "test": test, "outcome": outcome, "duration_s": duration_s}
        with self._file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


class _Selection:
    """For the processes that collect tests."""

    def __init__(self, done: list[str]) -> None:
        self._done = set(done)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if _name(item.nodeid) in self._done]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if _name(item.nodeid) not in self._done]


def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.pluginmanager.register(_Selection(workerinput["stress_done"]))
        return
    results = _Results(Path(os.environ[RESULTS]), int(os.environ[ROUND]))
    config.pluginmanager.register(results)
    config.pluginmanager.register(_Selection(results.done))


def _name(nodeid: str) -> str:
    """Without the group that xdist adds."""
    return nodeid.partition("@")[0]
