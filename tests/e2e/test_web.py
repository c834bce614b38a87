"""The live page in Chromium: every view, every act, a killed orchestrator; and what axe says of all
of it.

Needs Debian's `chromium` or Chrome (Playwright's own Chromium plays no MP4); without one the tests
are skipped, but not where CI is set. axe is a file of the package axe-playwright-python; nothing is
fetched. PODRACER_SCREENSHOTS names a folder for pictures of every view, light and dark, on a
desktop and on a phone; docs/images has `lineage_light` and `leaderboard_phone` of them."""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from podracer_client import Client
from support.commands import run_here
from support.processes import Command, descendants, wait_until
from tests.e2e.conftest import commands_in, start_up

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install playwright, and a chromium on PATH"
)

pytestmark = [pytest.mark.thorough, pytest.mark.processes, pytest.mark.timeout(900)]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VIEWS = ("pods", "curves", "lineage", "leaderboard", "hyperparameters", "events")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}
THEME = (
    "theme => { document.documentElement.dataset.theme = theme; dispatchEvent(new "
    "Event('resize')) }"
)
AXE = (
    "rules => axe.run({resultTypes: ['violations'], ...(rules && {runOnly: rules})}).then(found "
    "=> found.violations)"
)
LIMIT_MS = 180_000
JOB = """name: live
environment: CartPole-v1
objective: {max_duration: 1h}
search: {algorithms: [ppo], space: {learning_rate: {log_uniform: [1.0e-4, 3.0e-3]}}}
evolution: {population: 4, leaderboard_size: 2, round: {seconds: 1}}
pod: {members: 2}
evaluation: {episodes: 8}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[Command, str]]:
    """`podracer up`, and the URL that `podracer web` has printed."""
    with commands_in(folder) as start:
        up = start_up(start, folder)
        web = start("web")
        wait_until(lambda: web.lines or web.process.poll() is not None, 120, "the page")
        assert web.lines, web.stderr
        yield up, web.lines[0]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Chromium: `apt install chromium`: {error}")
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that was entered with the key; no error on its console."""
    context = chromium.new_context(**options)
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on(
        "console",
        lambda said: _is_error(said) and errors.append(f"{said.text} {said.location['url']}"),
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.wait_for_selector("#connection.live")
    yield page
    context.close()
    assert errors == []


def _is_error(said: Any) -> bool:
    """Chromium says of each refusal that it was one: of the entrance, and of acts."""
    path = urlsplit(said.location["url"]).path
    return said.type == "error" and path != "/" and not path.startswith("/api/acts/")


@pytest.fixture(scope="module")
def page(chromium: Any, server: tuple[Command, str]) -> Iterator[Any]:
    with opened(chromium, server[1]) as page:
        yield page


@pytest.fixture(scope="module")
def job(page: Any) -> str:
    """A job that was submitted on the page: first with mistakes."""
    page.click("text=Submit a job")
    page.fill("#ask-text", JOB + "speed: 9\n")
    page.click("dialog button.main")
    page.wait_for_selector("dialog [role=alert]:not([hidden])")
    assert "job.yaml:8: speed: unknown key" in page.inner_text("dialog [role=alert]")
    page.fill("#ask-text", JOB)
    page.click("dialog button.main")
    page.wait_for_selector(".tiles")
    name: str = page.inner_text("h1")
    assert name.startswith("live-")
    return name


def act(page: Any, name: str, **fields: str) -> str:
    """Open the act's dialog, fill its fields, and confirm; returns the dialog's title. `name` may
    be a selector."""
    page.click(name if name.startswith("[") else f"#act-{name}" if "-" not in name else f"#{name}")
    title: str = page.inner_text("#ask-title")
    for field, value in fields.items():
        page.fill(f"#ask-{field}", value)
    page.click("dialog button[type=submit]")
    page.wait_for_selector("dialog", state="detached")
    return title


def see(page: Any, view: str, *, text: str) -> None:
    page.click(f"#tab-{view}")
    page.wait_for_selector(f"main section >> text={text}")


def test_without_the_key_nothing_is_shown(chromium, server):
    context = chromium.new_context()
    page = context.new_page()
    assert page.goto(server[1].partition("#")[0]).status == 401
    assert "Open the URL" in page.inner_text("main")
    for key, then in (
        ("guess", "text=wrong key"),
        (server[1].partition("#key=")[2], "#connection.live"),
    ):
        page.fill("#key", key)
        page.click("form button")
        page.wait_for_selector(then)
    context.close()


def test_every_view(page, job):
    page.wait_for_selector(".tiles >> text=RUNNING")
    see(page, "leaderboard", text="Promote")
    see(page, "lineage", text="a0001")
    page.click("#agent-a0001")
    page.wait_for_selector("section.panel >> text=learning_rate")
    see(page, "hyperparameters", text="learning_rate")
    see(page, "pods", text="Cores")
    see(page, "events", text="LEASE_GRANTED")
    see(page, "curves", text="agents. Orange: a0")
    assert page.evaluate("document.querySelector('canvas').width") > 0
    page.select_option("#agent", "a0001")
    page.wait_for_selector("text=Orange: a0001")


def test_every_act(page, job, folder):
    act(page, "scale", min="1", max="2")
    page.wait_for_selector("text=1 to 2 asked for")
    act(page, "suspend")
    page.wait_for_selector(".tiles >> text=SUSPENDED")
    act(page, "resume")
    page.wait_for_selector(".tiles >> text=RUNNING")
    page.click("#tab-leaderboard")
    for _ in range(2):
        title = act(page, "[id^=promote-]", reason="because")  # the first: a named one could leave
        agent = re.search(r"a\d{4}", title).group()
        page.wait_for_selector(f"td:has-text('because') >> xpath=.. >> text={agent}")
    act(page, "rollback")
    page.wait_for_selector("text=rolled back")
    with Client.connect(folder=folder / "runs") as client:
        assert len(client.promotions(job)) == 3
    see(page, "lineage", text="a0001")
    agent = living(page)
    act(page, f"pin-{agent}")
    page.wait_for_selector("section.panel >> text=pinned")
    act(page, f"unpin-{agent}")
    page.click(f"#fork-{agent}")
    assert not page.query_selector("#ask-set-hidden_sizes"), "its weights would not fit"
    page.keyboard.press("Escape")
    act(page, f"fork-{agent}", **{"set-learning_rate": "2e-5"})
    page.wait_for_selector("section.panel >> text=learning_rate 2e-05")
    fork = page.inner_text("section.panel h2")
    act(page, f"stop-{fork}")
    page.wait_for_selector("section.panel >> text=/stopped|stops after/")


def living(page: Any) -> str:
    """The youngest agent that can be pinned, with its panel open: the best one may have ended."""
    for name in reversed(
        page.eval_on_selector_all("[id^=agent-]", "nodes => nodes.map(node => node.id.slice(6))")
    ):
        page.click(f"#agent-{name}")
        page.wait_for_selector(f"section.panel h2 >> text={name}")
        if page.query_selector(f"#pin-{name}"):
            return str(name)
    raise AssertionError("no agent lives")


def test_the_keyboard_reaches_everything(page, job):
    page.focus("#tab-events")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tab-events[aria-current=page]")
    page.focus("#act-suspend")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.id") == "act-suspend"


def test_a_killed_orchestrator_is_found_again(page, job, server):
    up, _ = server
    see(page, "events", text="ROUND_COMPLETED")
    (orchestrator,) = [each for each in descendants(up.process.pid) if _is_orchestrator(each)]
    newest = page.inner_text("section tbody tr:first-child")
    orchestrator.kill()
    page.wait_for_selector("#connection.reconnecting")
    page.wait_for_selector("#connection.live")
    page.wait_for_function(
        "text => document.querySelector('section tbody tr').innerText !== text", arg=newest
    )


def _is_orchestrator(process: psutil.Process) -> bool:
    try:
        return "podracer_orchestrator" in process.cmdline()
    except psutil.Error:  # a pod's that has just ended
        return False


def test_every_view_is_accessible(chromium, server, job):
    """In a narrow window and with dark colours too. Pods end once they were seen: a still page is
    looked at sooner."""
    with (
        opened(chromium, server[1], color_scheme="light") as desktop,
        opened(chromium, server[1], **PHONE) as phone,
    ):
        themes = [
            page.evaluate("document.documentElement.dataset.theme") for page in (desktop, phone)
        ]
        assert themes == ["light", "dark"]
        pages = (
            (desktop, _looker(desktop, "light", "dark")),
            (phone, _looker(phone, "phone", "dark_phone")),
        )
        for page, look in pages:
            page.wait_for_selector("tbody a")
            look("jobs")
            page.click("text=Submit a job")
            look("submit")
            page.keyboard.press("Escape")
            page.click(f"#job-{job}")
        for view in VIEWS:
            for page, look in pages:
                page.click(f"#tab-{view}")
                page.wait_for_selector(f"#tab-{view}[aria-current=page]")
                if view == "leaderboard" and page is desktop:
                    watch(page)
                look(view)
            if view == "pods":
                act(desktop, "suspend")
        for page, _ in pages:
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                "the page itself scrolls sideways"
            )


def watch(page: Any) -> None:
    """Watch the first of the ranking."""
    page.click("[id^=watch-] >> nth=0")
    page.wait_for_selector(".videos figcaption")
    assert "training steps: an episode of" in page.inner_text(".videos figcaption")
    page.wait_for_function("() => document.querySelector('video').readyState >= 2")


def _looker(page: Any, light: str, dark: str) -> Callable[[str], None]:
    """Of a page in both themes, by what its pictures are called; colours are all that the second
    look can find."""
    found = find_spec("axe_playwright_python")
    assert found is not None, "requirements-dev.txt has axe-playwright-python"
    axe = Path(str(found.origin)).with_name("axe.min.js").read_text(encoding="utf-8")
    shots = os.environ.get("PODRACER_SCREENSHOTS")

    def look(view: str) -> None:
        page.evaluate(axe)
        for theme, name, rules in (
            ("dark", dark, ["color-contrast", "link-in-text-block"]),
            ("light", light, None),
        ):
            page.evaluate(THEME, theme)
            if shots:
                page.wait_for_timeout(500)  # for a picture of what has come, not for a test of it
                page.screenshot(path=f"{shots}/web_{view}_{name}.png", full_page=True)
            serious = [
                (each["id"], [node["html"] for node in each["nodes"]])
                for each in page.evaluate(AXE, rules)
                if each["impact"] in ("serious", "critical")
            ]
            assert serious == [], (view, name)

    return look


def test_the_report_has_the_champion(job, folder):
    made = run_here("report", job, "report.html", cwd=folder)
    assert made.returncode == 0, made.stderr
    found = re.search(
        r'<video src="data:video/mp4;base64,([^"]+)"', (folder / "report.html").read_text()
    )
    assert found, made.stderr
    assert b"ftyp" in base64.b64decode(found[1])[:16]


def test_a_run_has_a_page_of_its_own(podracer, chromium, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    run = podracer("run", "job.yaml", "--web", "--plain")
    wait_until(lambda: run.errors or run.process.poll() is not None, 120, "the page")
    said, _, url = run.errors[0].partition(": ")
    assert said == "live page", run.stderr
    with opened(chromium, url) as page:
        page.click("tbody a")
        page.wait_for_selector(".tiles >> text=RUNNING")
        page.click("#theme")
        run.interrupt()
        page.wait_for_selector(".tiles >> text=SUSPENDED")
    assert run.wait(60) == 130


def test_cancel_and_delete(page, job):
    act(page, "cancel")
    page.wait_for_selector(".tiles >> text=CANCELLED")
    act(page, "delete")
    page.wait_for_selector("h1 >> text=Jobs")
