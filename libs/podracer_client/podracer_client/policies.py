"""Where a checkpoint is that the user names: a folder here, or on a server, from where it is fetched."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from podracer_client.client import Client
from podracer_client.names import is_checkpoint_name
from podracer_core.errors import InvalidInput, NotFound

MANIFEST = "manifest.json"


@contextmanager
def checkpoint_folder(text: str, connect: Callable[[], Client]) -> Iterator[Path]:
    """The folder of a checkpoint; one that had to be fetched is removed at the end.

    Raises NotFound when it is neither here nor on the server, InvalidInput when it is a folder without a checkpoint.
    """
    path = Path(text)
    if path.exists() or not is_checkpoint_name(text):
        yield _local(path)
        return
    with tempfile.TemporaryDirectory(prefix="podracer-checkpoint-") as folder, connect() as client:
        target = Path(folder) / "checkpoint"
        client.download(text, target)
        yield target


def _local(path: Path) -> Path:
    if path.is_file() and path.name == MANIFEST:
        path = path.parent
    if not path.exists():
        raise NotFound(
            f"there is no checkpoint {path}; expected a folder, or a name such as "
            "projects/default/jobs/JOB/checkpoints/best",
            reason="NO_CHECKPOINT",
            path=path,
        )
    if not path.is_dir():
        raise InvalidInput(f"{path} is no checkpoint: expected a folder with a {MANIFEST}", path=path)
    if not (path / MANIFEST).is_file():
        raise InvalidInput(f"{path} is no checkpoint: it has no {MANIFEST}", path=path)
    return path.absolute()
