"""Pages of made-up jobs: whole, self-contained, the same twice, and with nothing in them that was
not put there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import pytest

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.files import write_whole
from podracer_client.jobs import Event, History, Pod
from podracer_client.report import (
    Experiment,
    experiment_figures,
    experiment_of,
    experiment_page,
    job_figures,
    job_page,
)
from podracer_client.report.figures import draw_curves, render, render_figures, write_figures
from podracer_core.errors import InvalidInput
from support.reports import changed, empty_report, failed_report, made_up_report

pytestmark = pytest.mark.xdist_group("report_pages")  # the pages are made once
FILM = "data:video/mp4;base64,ZmlsbQ=="
VOID = {"meta", "br", "img", "link", "hr", "input"}


def page_of(report: History, *, video: tuple[str, str] = ("", "")) -> str:
    plans = job_figures(report)
    return job_page(report, plans, render_figures(plans, png=False), video=video)


def with_job(report: History, **fields: object) -> History:
    return replace(report, job=changed(report.job, **fields))


def page_of_experiment(experiment: Experiment) -> str:
    plans = experiment_figures(experiment)
    return experiment_page(experiment, plans, render_figures(plans, png=False))


def grid(seeds: int = 2) -> Experiment:
    labels = [
        {"experiment": "grid", "matrix.learning_rate": rate, "matrix.seed": str(seed)}
        for rate in ("0.01", "0.001")
        for seed in range(seeds)
    ]
    jobs = [
        with_job(
            made_up_report(6, 3, seed=number),
            name=f"projects/default/jobs/grid-{number}",
            labels=each,
        )
        for number, each in enumerate(labels)
    ]
    return experiment_of("grid", jobs)


def without_evaluations(report: History) -> History:
    job = changed(report.job)
    job.progress.ClearField("best")
    return History(job, agents=report.agents, events=report.events)


def infested_report() -> History:
    """Names and messages that try to be HTML, in agents, pods and events too."""
    report = made_up_report(3, 2)
    evil = "<svg onload=alert(1)>$x^2$ & \"'"
    agents = tuple(
        replace(agent, reason=evil, hyperparameters={evil: 0.1 * n})
        for n, agent in enumerate(report.agents)
    )
    events = (*report.events, Event(99, evil, evil, "pods", evil, 3.0, {}))
    pods = (Pod(evil, "IDLE", "FUSED", evil, 0.0, 1, evil),)
    policy = agent_pb2.Parent(agent=evil)
    champion = agent_pb2.Parent(agent=f"projects/default/jobs/{evil}")
    job = changed(
        report.job,
        name=f"projects/default/jobs/{evil}",
        ensemble=job_pb2.Ensemble(policies=[policy], rule=evil),
        retrained=policy,
        continuous_status=job_pb2.ContinuousStatus(champion=champion),
    )
    return replace(report, job=job, agents=agents, events=events, pods=pods)


PAGES: dict[str, Callable[[], str]] = {
    "accepted": lambda: page_of(empty_report()),
    "failed before any agent": lambda: page_of(failed_report()),
    "no evaluation": lambda: page_of(without_evaluations(made_up_report(2, 1))),
    "filmed": lambda: page_of(made_up_report(1, 1), video=(FILM, "an episode of 5 steps")),
    "not filmed": lambda: page_of(made_up_report(1, 1), video=("", "no video: nothing draws it")),
    "one agent": lambda: page_of(made_up_report(1, 1)),
    "a population": lambda: page_of(made_up_report()),
    "running": lambda: page_of(made_up_report(ended=False)),
    "infested": lambda: page_of(infested_report()),
    "an experiment": lambda: page_of_experiment(grid()),
    "an experiment of one": lambda: page_of_experiment(
        experiment_of("one", [empty_report(labels={"experiment": "one"})])
    ),
}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: make() for name, make in PAGES.items()}


class Reader(HTMLParser):
    """Checks that elements are nested as they should be, and notes what matters."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.identifiers: list[str] = []
        self.references: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.identifiers.append(value or "")
            if name in ("href", "src", "srcset", "xlink:href", "data", "action"):
                self.references.append(value or "")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_asks_for_nothing(name, pages):
    text = pages[name]
    reader = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert len(reader.identifiers) == len(set(reader.identifiers))
    assert (FILM in reader.references) == (name == "filmed")
    assert {f"#{identifier}" for identifier in reader.identifiers} >= set(reader.references) - {
        FILM
    }
    assert ("no video: nothing draws it" in reader.texts) == (name == "not filmed")
    assert set(re.findall(r"url\((?!#)", text)) == set()
    assert not {"script", "link", "iframe", "img", "object", "embed", "foreignobject"} & set(
        reader.tags
    )
    assert "://" not in text
    assert "@import" not in text


@pytest.mark.parametrize("name", PAGES)
def test_nothing_that_is_no_number_is_shown(name, pages):
    words = " ".join(Reader(pages[name]).texts).lower().split()
    assert not {"nan", "inf", "-inf", "−inf", "none", "null"} & {
        word.strip(",;()") for word in words
    } - {"none"}


@pytest.mark.parametrize("name", PAGES)
def test_both_themes_and_paper_have_their_colours(name, pages):
    text = pages[name]
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    body = text[text.index("<body>") :]
    assert "#1b1e23" not in body  # the ink is a variable, so that it is legible in the dark


def test_the_same_data_give_the_same_bytes(pages):
    for name in ("a population", "infested"):
        assert PAGES[name]() == pages[name]


def test_what_users_wrote_is_shown_as_they_wrote_it(pages):
    shown = " ".join(Reader(pages["failed before any agent"]).texts)
    for text in (
        "<b>it</b> raised & ended",
        "</pre><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
    ):
        assert text in shown
    infested = " ".join(Reader(pages["infested"]).texts)
    assert "<svg onload=alert(1)>$x^2$ & \"'" in infested
    assert "it is the policy that the job ends with" in infested
    assert "Continuous training" in infested


def test_a_page_says_what_came_out(pages):
    report = made_up_report()
    shown = " ".join(Reader(pages["a population"]).texts)
    assert report.best is not None
    for words in (
        "target missed",
        "device seconds",
        "Learning curves",
        "Lineage",
        "Population",
        "pendulum-1",
    ):
        assert words in shown
    for candidate in report.candidates:
        assert candidate.agent in shown
    assert "Nothing was evaluated yet." in " ".join(Reader(pages["no evaluation"]).texts)
    assert "as it was after" in " ".join(Reader(pages["running"]).texts)


@pytest.mark.thorough
def test_five_hundred_agents_make_a_page_of_bounded_size():
    report = made_up_report(500, 40)
    assert len(report.evaluations) > 15_000
    text = page_of(replace(report, evaluation_count=2 * len(report.evaluations)))
    assert len(text) < 4_000_000
    shown = " ".join(Reader(text).texts)
    assert "400 most telling of 500 agents" in shown
    assert "The first 300 of 500." in shown
    assert "an even choice" in shown


def test_figures_are_files_too(tmp_path):
    report = made_up_report(4, 2)
    plans = job_figures(report)
    written = write_figures(tmp_path / "figures", render_figures(plans, png=True).values())
    assert {path.name for path in written} == {
        f"{plan.name}.{kind}" for plan in plans for kind in ("svg", "png")
    }
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
        assert path.suffix == ".png" or b"<text" in content
    again = render_figures(plans[:1], png=True)
    assert all(
        (tmp_path / "figures" / f"{name}.png").read_bytes() == figure.png
        for name, figure in again.items()
    )


def test_names_in_any_script_are_drawn_without_a_warning(recwarn):
    report = made_up_report()
    agents = [replace(agent, algorithm="日本") for agent in report.agents]
    rendered = render(
        "curves",
        partial(draw_curves, replace(report, agents=tuple(agents)), by_time=True),
        png=True,
    )
    assert rendered is not None
    assert "日本" in rendered.svg
    assert not recwarn.list


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "page.html", b"one")
    write_whole(tmp_path / "page.html", b"two")
    assert (tmp_path / "page.html").read_text() == "two"
    with pytest.raises(InvalidInput, match="cannot write"):
        write_whole(tmp_path / "missing" / "page.html", b"three")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
