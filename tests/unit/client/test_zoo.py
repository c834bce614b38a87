"""`podracer zoo`: the job files, their cards, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import typer

from podracer_client.command import job_files
from podracer_client.command import run as run_module
from podracer_client.zoo import entries, find_entry
from podracer_core.errors import NotFound
from support.errors import raises
from support.processes import ROOT

PAGE = (ROOT / "docs" / "zoo.md").read_text()
NAMES = [entry.name for entry in entries()]


def test_there_are_ten_and_each_is_a_job_of_its_name():
    assert len(NAMES) >= 10
    assert [entry.job.name for entry in entries()] == NAMES


@pytest.mark.parametrize("entry", entries(), ids=NAMES)
def test_the_page_shows_the_card(entry):
    assert f"| {' | '.join(job_files.row(entry))} |" in PAGE
    assert (entry.run is None) == bool(entry.note), "a note stands in for a run"
    if entry.run is None:
        assert entry.note in " ".join(PAGE.split())
    else:
        assert entry.run.lower <= entry.run.mean <= entry.run.upper
        video = f"images/zoo/{entry.name}.mp4"
        assert (f"({video})" in PAGE) == (ROOT / "docs" / video).is_file()


def test_an_entry_runs_as_its_job_file_does(tmp_path):
    starts: list[tuple[Callable[..., None], object]]
    starts = [(job_files.run_entry, "cartpole"), (run_module.run, find_entry("cartpole").job_file)]
    with mock.patch("podracer_client.local.foreground.run_job", return_value=3) as run_job:
        for start, what in starts:
            with pytest.raises(typer.Exit) as ended:
                start(what, tmp_path, plain=True, max_pods=2)
            assert ended.value.exit_code == 3
    (one, other) = (call.args for call in run_job.call_args_list)
    assert (one[0], one[1], one[3]) == (other[0], other[1], other[3])


def test_an_unknown_name_is_refused_with_the_nearest():
    with raises(NotFound, "ENTRY_NOT_FOUND"):
        find_entry("cartpol")


def test_examples_are_the_same_files():
    for example, name in (
        ("cartpole", "cartpole"),
        ("pendulum", "pendulum"),
        ("stock_trading/job", "stock-trading"),
    ):
        assert find_entry(name).job_file.samefile(ROOT / "examples" / f"{example}.yaml")
