"""What a user does first: wheels into an empty environment, `podracer demo`, and the champion moves
in a browser.

pip takes all but torch from its index. torch and what it needs are this environment's: a folder of
links, named by a `.pth` file, which pip reads and never writes to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from support.processes import ROOT, wait_until
from tests.e2e.test_web import chromium, opened  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LIMIT_S = 600.0
RUN = ["run", str(ROOT / "examples" / "cartpole.yaml")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheels` builds, of a copy: it leaves nothing in the repository."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copy(ROOT / "Makefile", copy)
    for name in ("libs", "services"):
        shutil.copytree(
            ROOT / name,
            copy / name,
            ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "build"),
        )
    subprocess.run(["make", "-C", copy, "-o", "setup", f"VENV={sys.prefix}", "wheels"], check=True)
    return copy / "dist"


class Installation:
    """A virtual environment without anything of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        ours = {"PYTHONPATH", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        self.environment = {
            name: value for name, value in kept.items() if not name.startswith("PODRACER_")
        }
        self.environment["BROWSER"] = "true"  # the test opens the page

    def install(self, wheels: Path, wanted: str) -> float:
        """Seconds that pip took."""
        begin = time.monotonic()
        command = [
            self.folder / "venv" / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--find-links",
            wheels,
        ]
        subprocess.run([*command, wanted], env=self.environment, check=True)
        return time.monotonic() - begin

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [self.folder / "venv" / "bin" / "podracer", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, **options
        )

    def lend_torch(self) -> None:
        lent = self.folder / "lent"
        lent.mkdir()
        for name, entry in torch_entries():
            if not (lent / name).exists():
                (lent / name).symlink_to(entry)
        (site_packages,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        (site_packages / "lent.pth").write_text(f"{lent}\n")


def torch_entries() -> Iterator[tuple[str, Path]]:
    """What torch and all that it requires have in their folder."""
    waiting, seen = [Requirement("torch")], set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        try:
            found = distribution(wanted.name)
        except PackageNotFoundError:  # another platform's
            continue
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            yield name, Path(str(found.locate_file(name)))
        for each in map(Requirement, found.requires or ()):
            extras = wanted.extras or {""}
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in extras
            ):
                waiting.append(each)


def test_the_client_alone_names_the_missing_extra(wheels, tmp_path):
    client = Installation(tmp_path)
    client.install(wheels, "podracer-client")
    assert not list((tmp_path / "venv").glob("lib/python*/site-packages/torch*"))
    refused = client.start(*RUN, stderr=subprocess.PIPE)
    said = refused.communicate(timeout=LIMIT_S)[1]
    assert refused.returncode == 2
    assert said == (
        "podracer: this command needs the extra `local`, which is not installed: pip install "
        "'podracer-client[local]'\n"
    )


def test_two_commands_to_a_champion_that_moves(wheels, tmp_path, chromium):  # noqa: F811
    installation = Installation(tmp_path)
    installation.lend_torch()
    installed_s = installation.install(wheels, "podracer-client[local,web,video]")
    begin = time.monotonic()
    demo = installation.start("demo", "--plain", "--open", stdout=(tmp_path / "said").open("w"))
    try:
        wait_until(
            lambda: "#key=" in said(tmp_path) or demo.poll() is not None, LIMIT_S, "the page"
        )
        url = next(line for line in said(tmp_path).splitlines() if "#key=" in line)
        with opened(chromium, url) as page:
            wait_until(lambda: page.evaluate(f"{VIDEO}?.currentTime > 0"), LIMIT_S, "the video")
            first = page.evaluate(PIXELS)
            wait_until(lambda: page.evaluate(PIXELS) != first, LIMIT_S, "another picture")
            print(
                f"\ninstalled in {installed_s:.0f} s; the champion moves "
                f"{time.monotonic() - begin:.0f} s later"
            )
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(LIMIT_S)


VIDEO = "document.querySelector('video')"
PIXELS = f"""(() => {{
  const [video, canvas] = [{VIDEO}, document.createElement("canvas")];
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  return canvas.toDataURL();
}})()"""


def said(folder: Path) -> str:
    return (folder / "said").read_text()
