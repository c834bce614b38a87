"""docs/paper.md answers each claim, with figures, files and commands that are there; its links are
tested with those of all documents."""

from __future__ import annotations

import re
import sys

import pytest

from support.processes import ROOT

sys.path.append(str(ROOT / "scripts"))

from paper import quick_forms, rows, run_quick_form

ANSWERED = (ROOT / "docs" / "benchmarks" / "answered.md").read_text()
FIGURE = r"\d{4}-\d\d-\d\d|(?<![\w-])\d[\d,.]*\d"  # of at least two digits


@pytest.mark.parametrize("row", rows("command"), ids=lambda row: next(iter(row.values()))[:50])
def test_a_claim_has_figures_of_the_pages_that_it_names_or_a_reason(row):
    _, ours, date, command = row.values()
    assert all(row.values())
    pages = re.findall(r"\]\(([\w/.-]+)\)", ours)
    assert pages or ours.startswith("not shown, because ")
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    told = re.sub(r"\]\(.*?\)|`.*?`", "", ours) + " " + date
    for figure in re.findall(FIGURE, told):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", text), figure
    for path in re.findall(r"(?:benchmarks|tests)/[\w/]+\.py", command):
        assert (ROOT / path).exists() or f"`{path.removeprefix('benchmarks/')}`" in ANSWERED, path
    assert re.search(r"`(make|pytest|python) |answered\.md", command) or date == "not run"


def test_each_box_of_the_figures_has_its_files():
    for row in rows("file"):
        files = re.findall(r"`(.+?\.py)`", row["file"])
        assert files and all(row.values()) and all((ROOT / file).is_file() for file in files), row


@pytest.mark.thorough
@pytest.mark.parametrize("form", quick_forms())
def test_a_quick_form_runs(form):
    run_quick_form(form)
