"""What each image installs besides our own code, from the pyproject.toml files: `requirements.py FOLDER` writes a file
an image. A new version of ours leaves them as they are, so that the layers made from them stay too."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_POD = ("torch", "mujoco", "box2d", "trading", "telemetry")
IMAGES: Mapping[str, tuple[Mapping[str, Sequence[str]], Sequence[str]]] = {
    # The extras of our packages, by folder, and what else. The command comes with the orchestrator.
    "orchestrator": (
        {"libs/podracer_core": ("database", "telemetry"), "services/orchestrator": ("kubernetes",)},
        ("psycopg[binary]", "cryptography", "rich", "starlette", "typer", "uvicorn"),
    ),
    "leaderboard": (
        {"libs/podracer_core": ("database", "telemetry"), "services/leaderboard": ()},
        ("psycopg[binary]",),
    ),
    "pod": ({"libs/podracer_core": _POD}, ()),
    "pod-cuda": ({"libs/podracer_core": (*_POD, "mujoco-warp")}, ()),
}


def requirements_of(image: str, root: Path = ROOT) -> list[str]:
    """In order, without those on our own packages."""
    folders, found = IMAGES[image][0], set(IMAGES[image][1])
    for folder, extras in folders.items():
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        found.update(project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras))
    return sorted(one for one in found if not re.match(r"podracer-", one))


if __name__ == "__main__":
    for name in IMAGES:
        (Path(sys.argv[1]) / f"{name}.txt").write_text("\n".join(requirements_of(name)) + "\n")
