"""What each image installs besides our own code, from the pyproject.toml files, and the locks:
`make locks`.

A lock has the hashes of all wheels that fit CPython 3.11 and glibc 2.28. A new version of ours
leaves it as it is, so that the layer made from it stays too."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_POD = ("torch", "mujoco", "box2d")
_POD_LIBRARIES = {"libs/podracer_platform": ("telemetry",), "libs/podracer_trading": ()}
_CONTROL_LIBRARIES = {"libs/podracer_platform": ("database", "telemetry")}
IMAGES: Mapping[str, tuple[Mapping[str, Sequence[str]], Sequence[str]]] = {
    # The extras of our packages, by folder, and what else. The command comes with the orchestrator.
    "orchestrator": (
        {**_CONTROL_LIBRARIES, "services/orchestrator": ("kubernetes",)},
        ("psycopg[binary]", "cryptography", "rich", "starlette", "typer", "uvicorn"),
    ),
    "leaderboard": (
        {**_CONTROL_LIBRARIES, "libs/podracer_core": ("optuna",), "services/leaderboard": ()},
        ("psycopg[binary]",),
    ),
    "pod": ({"libs/podracer_core": _POD, **_POD_LIBRARIES}, ()),
    "pod-cuda": ({"libs/podracer_core": (*_POD, "mujoco-warp"), **_POD_LIBRARIES}, ()),
}
CUDA = re.compile(r"(cuda|nvidia|triton)\b")  # begins the name of what only a torch with CUDA needs
_ARCHITECTURES = ("x86_64", "aarch64")


def requirements_of(image: str, root: Path = ROOT) -> list[str]:
    """In order, without those on our own packages."""
    folders, found = IMAGES[image][0], set(IMAGES[image][1])
    for folder, extras in folders.items():
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        found.update(
            project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)
        )
    return sorted(one for one in found if not re.match(r"podracer-", one))


def locked() -> dict[str, list[str]]:
    """The requirements that each lock resolves, but torch's own, by the lock's name."""
    images = {image: [one for one in requirements_of(image) if one != "torch"] for image in IMAGES}
    return {"build": ["setuptools>=77"], **images}


def _resolved(requirements: Sequence[str], architecture: str) -> dict[str, dict[str, Any]]:
    """The packages of a pylock.toml (PEP 751), by `name==version`."""
    platform = ["--python-version", "3.11", "--python-platform", f"{architecture}-manylinux_2_28"]
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        *platform,
        "--only-binary",
        ":all:",
    ]
    command += ["--format", "pylock.toml", "--constraint", str(ROOT / "constraints.txt"), "-"]
    done = subprocess.run(
        command, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=True
    )
    return {
        f"{one['name']}=={one['version']}": one for one in tomllib.loads(done.stdout)["packages"]
    }


def _lines(requirements: Sequence[str], architectures: Sequence[str] = _ARCHITECTURES) -> list[str]:
    resolved, lines = [_resolved(requirements, one) for one in architectures], []
    for pin in sorted(set().union(*resolved)):
        packages = [one[pin] for one in resolved if pin in one]
        everywhere = len(packages) == len(resolved)
        hashes = sorted({wheel["hashes"]["sha256"] for one in packages for wheel in one["wheels"]})
        lines.append(
            " --hash=sha256:".join(
                [pin if everywhere else f"{pin} ; {packages[0]['marker']}", *hashes]
            )
        )
    return lines


def _write(lock: str, lines: Sequence[str], first: str = "") -> None:
    text = "\n".join([f"# {first}Written by `make locks`.", *lines])
    (ROOT / "deploy" / "images" / f"{lock}.lock").write_text(text + "\n")


if __name__ == "__main__":
    for name, requirements in locked().items():
        # The image with CUDA is published for x86-64 alone: Warp asks for a newer glibc elsewhere.
        _write(name, _lines(requirements, ("x86_64",) if name == "pod-cuda" else _ARCHITECTURES))
    torch = _lines(["torch"])
    pin = next(line.split()[0] for line in torch if line.startswith("torch=="))
    # PyTorch's own index has other builds of this version, with other hashes.
    first = f"For {pin}, without a hash: TORCH_INDEX says which build it is. "
    torch = [line for line in torch if not line.startswith("torch==")]
    _write("torch-cuda", torch, first)
    _write("torch", [line for line in torch if not CUDA.match(line)], first)
