"""Coverage-guided inputs for what reads bytes from anywhere: `python parsers.py TARGET [libFuzzer's
options] [CORPUS]`.

Ends with another status than 0 at the first input that is neither read nor refused; libFuzzer keeps
it as a file."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["podracer_core", "yaml"]):
    from podracer_core.checkpoint.policy import open_packed_policy
    from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
    from podracer_core.storage.layout import CheckpointPlace
    from podracer_core.storage.manifest import Manifest
    from podracer_platform.attachments.unpack import unpack_code
    from podracer_platform.jobs.experiment import parse_experiment
    from podracer_platform.jobs.job_file import parse_job
    from podracer_platform.rpc.address import parse_address

REFUSED = (InvalidInput, DataCorrupted, NotFound)


def of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode(errors="replace"))


def code(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "archive.zip")
        archive.write_bytes(data)
        try:
            unpack_code(archive, Path(folder, "code"))
        finally:
            assert {path.name for path in Path(folder).iterdir()} <= {"archive.zip", "code"}


def policy(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        open_packed_policy(Path(file.name))


TARGETS: dict[str, Callable[[bytes], object]] = {
    "job": of_text(parse_job),
    "experiment": of_text(parse_experiment),
    "manifest": Manifest.from_json,
    "code": code,
    "policy": policy,
    "address": of_text(parse_address),
    "place": of_text(CheckpointPlace.parse),
}


def main() -> None:
    parse = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        with contextlib.suppress(REFUSED):
            parse(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
