"""What reads bytes from anywhere, with inputs that libFuzzer chooses by the code that they reach.

PODRACER_FUZZ says how many, twice that for each parser, 1,000 at least; `make fuzz` has many.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from podracer_core.checkpoint import load_checkpoint, pack_policy, save_checkpoint
from podracer_core.storage import Manifest, ManifestFile
from podracer_platform.storage import open_store

RUNS = max(1000, int(os.environ.get("PODRACER_FUZZ", "300")) * 2)
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "3"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def seeds(target: str, folder: Path) -> dict[str, bytes]:
    """What it begins with: whole inputs that are right."""
    match target:
        case "job" | "experiment":
            return {path.name: path.read_bytes() for path in EXAMPLES.rglob("*.yaml")}
        case "manifest":
            file = ManifestFile.describe("actor.safetensors", b"weights")
            return {
                "whole": Manifest(
                    (file, file.seen_from_beside("a/64-1/")), {"a": [1.5]}, {"torch": "2"}
                ).to_json()
            }
        case "code":
            with zipfile.ZipFile(folder / "seed.zip", "w") as archive:
                archive.writestr("module.py", "x = 1")
            return {"whole": (folder / "seed.zip").read_bytes()}
        case "policy":
            store = open_store((folder / "store").as_uri())
            save_checkpoint(store, "c/", {"actor": {"weight": torch.arange(6.0)}}, {"agent": "a"})
            return {"whole": pack_policy(load_checkpoint(store, "c/"))}
    return {
        "whole": b"projects/p/jobs/u/agents/a/checkpoints/64-1/"
        if target == "place"
        else b"unix:///tmp/a.sock"
    }


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no package for this Python"
)
@pytest.mark.parametrize(
    "target", ["job", "experiment", "manifest", "code", "policy", "address", "place"]
)
def test_bytes_are_read_or_refused(target, tmp_path):
    corpus, found = tmp_path / "corpus", tmp_path / "found"
    corpus.mkdir()
    found.mkdir()
    for name, data in seeds(target, tmp_path).items():
        (corpus / name).write_bytes(data)
    options = [
        f"-runs={RUNS}",
        f"-seed={SEED}",
        "-max_len=8192",
        "-timeout=20",
        f"-artifact_prefix={found}/",
    ]
    command = [
        sys.executable,
        str(Path(__file__).with_name("parsers.py")),
        target,
        *options,
        str(corpus),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    inputs = {path.name: path.read_bytes()[:500] for path in found.iterdir()}
    assert ran.returncode == 0, f"{inputs}\n{ran.stdout[-1000:]}\n{ran.stderr[-3000:]}"
