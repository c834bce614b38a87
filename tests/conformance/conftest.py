"""Prints the matrix of docs/conformance.md at the end, where a peer was there."""

from __future__ import annotations

import re

import pytest

SIGNS = {"passed": "yes", "xpassed": "yes", "failed": "no", "error": "no", "xfailed": "no", "skipped": "–"}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, dict[str, str]] = {}
    for outcome, sign in SIGNS.items():
        for report in terminalreporter.stats.get(outcome, ()):
            found = re.search(r"population_training\.py::test_(\w+)\[([a-z_]+)-?([a-z_]*)\]", report.nodeid)
            if found and report.when != "teardown":
                title = f"{found[1]} {found[3]}".replace("_", " ").strip()
                rows.setdefault(title, {})[found[2]] = sign
    systems = list(dict.fromkeys(system for row in rows.values() for system in row))
    if any(sign != "–" for row in rows.values() for system, sign in row.items() if system != "podracer"):
        terminalreporter.section("conformance of population training")
        for title, row in {"property": dict(zip(systems, systems, strict=True)), **rows}.items():
            terminalreporter.write_line(f"| {title} | " + " | ".join(row.get(each, "–") for each in systems) + " |")
