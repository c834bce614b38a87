"""Files from anywhere, broken in every way: each is read, or refused with a message; nothing is
written outside.

PODRACER_FUZZ says how many of each kind; `make fuzz` has many.
"""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from podracer_core.checkpoint import (
    load_checkpoint,
    open_packed_policy,
    pack_policy,
    save_checkpoint,
)
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound, PodracerError
from podracer_core.storage import Manifest, ObjectStore
from podracer_platform.attachments import pack_code, unpack_code
from podracer_platform.jobs import parse_experiment, parse_job
from podracer_platform.storage import open_store

COUNT = int(os.environ.get("PODRACER_FUZZ", "300"))
SEED = int(os.environ.get("PODRACER_FUZZ_SEED", "3"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PIECES = (
    b"", b"\0", b"{", b"}", b"[", b"]", b":", b"- ", b"&a ", b"*a", b"!!python/object:os.system ",
    b"|\n", b"\t", b"\xff\xfe", b"1e999", b"-1", b".nan", b"null", b"true", b"1_000", b"~",
    b"<<: *a\n", b"# ", b"\n", b"'", b'"', b"../", b"%YAML 1.1\n",
    b"9" * 400, b"a" * 5000, b"\xe2\x80\xa8", b"---\n", b"? ",
)  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a few changes: bits, bytes, lines, pieces put in, ends cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(7):
            case 0 if changed:
                changed[at - 1] ^= 1 << chance.randrange(8)
            case 1:
                changed[at:at] = chance.choice(PIECES)
            case 2:
                del changed[at : at + chance.choice((1, 4, 30, 400))]
            case 3:
                changed[at : at + 4] = chance.randbytes(4)
            case 4:
                other = chance.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + chance.choice((4, 40, 400))]
            case 5:
                del changed[at:]
            case _:
                lines = bytes(changed).split(b"\n")
                chance.shuffle(lines) if len(lines) < 60 and chance.random() < 0.2 else lines.pop(
                    chance.randrange(len(lines))
                )
                changed = bytearray(b"\n".join(lines))
    return bytes(changed)


def bombard(
    originals: list[bytes],
    read: Callable[[bytes], object],
    refused: tuple[type[PodracerError], ...],
) -> None:
    """`read` may take what it can, and raise these; whatever else it raises is a mistake, and is
    shown."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        data = mutated(chance.choice(originals), chance)
        try:
            read(data)
        except refused:
            continue
        except BaseException as error:
            raise AssertionError(f"number {number}, {data[:2000]!r}: {error!r}") from error


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("parse", [parse_job, parse_experiment])
def test_job_files(parse):
    originals = [path.read_bytes() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    assert len(originals) >= 4
    bombard(originals, lambda data: parse(data.decode(errors="replace")), (InvalidInput, NotFound))


@pytest.mark.timeout(7200)
def test_manifests():
    original = Manifest(
        (), {"agent": "a", "spaces": {"low": [1.0, -2.5], "name": "ä"}}, {"torch": "2"}
    ).to_json()
    bombard([original], Manifest.from_json, (DataCorrupted, InvalidInput))


def stored(store: ObjectStore) -> str:
    groups = {
        "actor": {"weight": torch.arange(6.0)},
        "optimizer": {"step": torch.zeros(1, dtype=torch.int64)},
    }
    return save_checkpoint(store, "c/", groups, {"agent": "a"}).manifest_sha256


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("known", [True, False])
def test_checkpoints(tmp_path, known):
    """Where its hash is known, nothing but the very same is accepted."""
    store = open_store((tmp_path / "store").as_uri())
    sha256 = stored(store)
    files = [info.key for info in store.list("c/")]
    contents = {key: store.get(key) for key in files}
    chance = random.Random(SEED)

    def read(data: bytes) -> None:
        name = chance.choice(files)
        store.put(name, data)
        try:
            load_checkpoint(store, "c/", sha256 if known else None)
            assert not known or data == contents[name], "altered, and accepted"
        finally:
            store.put(name, contents[name])

    bombard(list(contents.values()), read, (DataCorrupted, InvalidInput, NotFound))


@pytest.mark.timeout(7200)
def test_archives_of_code(tmp_path):
    folder = tmp_path / "code"
    (folder / "inner").mkdir(parents=True)
    (folder / "module.py").write_text("x = 1\n" * 50)
    (folder / "inner" / "data.txt").write_text("data")
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as archive:
        for name in (
            "../outside.py",
            "/absolute.py",
            "module.py",
            "module.py",
            "inner",
            "inner/a.py",
            "a\\b.py",
            "C:x.py",
        ):
            archive.writestr(name, "x = 1")
    outer = tmp_path / "outer"
    outer.mkdir()
    numbers = iter(range(COUNT))

    def read(data: bytes) -> None:
        target = outer / str(next(numbers))
        archive = tmp_path / "archive.zip"
        archive.write_bytes(data)
        try:
            unpack_code(archive, target)
        finally:
            assert {path.name for path in tmp_path.iterdir()} == {
                "code",
                "evil.zip",
                "outer",
                "archive.zip",
            }
            assert all(path.parent == outer for path in outer.iterdir())

    bombard(
        [pack_code(folder, "module:Thing"), evil.read_bytes()], read, (InvalidInput, DataCorrupted)
    )


@pytest.mark.timeout(7200)
def test_packed_policies(tmp_path):
    store = open_store(tmp_path.as_uri())
    stored(store)
    originals = [pack_policy(load_checkpoint(store, "c/"))]
    path = tmp_path / "policy"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        open_packed_policy(path)

    bombard(originals, read, (DataCorrupted, InvalidInput, NotFound))
