"""The environment of a policy's training: its files for an evaluator, whether its code, which comes
from a server, may run on this machine, and other arguments (`--set NAME=VALUE`)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from podracer.common.v1 import environment_pb2
from podracer.evaluator.v1 import evaluator_service_pb2, evaluator_service_pb2_grpc
from podracer_client.jobs import Client
from podracer_client.local import Connect
from podracer_client.servers import DEFAULT_FOLDER
from podracer_core.catalogue import EnvironmentSpec, StoredFile
from podracer_core.errors import InvalidInput, NotFound, PodracerError
from podracer_core.storage import FILE_NAME, Manifest
from podracer_platform.attachments import put_file
from podracer_platform.messages import environment_to_message
from podracer_platform.yaml_text import parse_yaml

_FILE = "trusted_code"


@dataclass(frozen=True, slots=True)
class Trust:
    """`folder`: the state folder, which remembers the digests that are trusted; `given`: by
    `--trust`."""

    folder: Path | None = None
    given: bool = False

    def require(self, code: StoredFile) -> None:
        """Ask, once for each digest. Raises InvalidInput (UNTRUSTED_ENVIRONMENT) without an
        answer."""
        known = (self.folder or DEFAULT_FOLDER) / _FILE
        if known.exists() and code.sha256 in known.read_text().split():
            return
        name = "/".join(code.key.split("/")[:4])
        text = f"the policy's environment is code of the server: {name}, SHA-256 {code.sha256[:16]}"
        import typer  # late: most callers ask nothing

        is_asked = not self.given and sys.stdin.isatty() and sys.stderr.isatty()
        if not self.given and not (
            is_asked and typer.confirm(f"{text}. Run it in a box?", err=True)
        ):
            message = f"{text}; if you trust it, say so once with --trust"
            raise InvalidInput(message, reason="UNTRUSTED_ENVIRONMENT")
        known.parent.mkdir(parents=True, exist_ok=True)
        with known.open("a") as file:
            file.write(f"{code.sha256}\n")


_DIGITS = 16
"""Digits of the SHA-256 in the name under which replaced content is kept
(`UploadHeader.replace`)."""


def bring_files(
    evaluator: evaluator_service_pb2_grpc.EvaluatorServiceStub,
    checkpoint: Path,
    connect: Connect,
    trust: Trust,
) -> None:
    """Send an evaluator the files of the environment of the checkpoint in a folder.

    They come from the object store that contains the folder, else from a server. Raises NotFound if
    neither has them, InvalidInput for a server's code that is not trusted."""
    environment = trained_environment(checkpoint)
    for file in environment.stored_files:
        if file == environment.code and not _beside(file, checkpoint):
            trust.require(file)
        with _local_copy(file, checkpoint, connect) as path:
            put_file(evaluator.PutFile, evaluator_service_pb2.PutFileRequest, file, path)


def trained_environment(checkpoint: Path) -> EnvironmentSpec:
    """The environment that the policy of the checkpoint in a folder was trained in. Raises
    InvalidInput for another manifest than an agent's."""
    manifest = Manifest.from_json(
        (checkpoint / FILE_NAME).read_bytes(), str(checkpoint / FILE_NAME)
    )
    try:
        return EnvironmentSpec.from_metadata(manifest.metadata["environment"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{checkpoint} is not an agent's checkpoint: {error!r}", reason="NOT_A_POLICY"
        ) from error


def parsed_arguments(
    settings: Sequence[str], what: str = "an argument of the environment"
) -> dict[str, Any]:
    """Values by name, in YAML as in a job file. Raises InvalidInput for a malformed or repeated
    NAME=VALUE."""
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInput(f"--set {setting}: expected NAME=VALUE, {what}")
        if name in arguments:
            raise InvalidInput(f"--set {name} is there twice")
        arguments[name] = parse_yaml(value, f"--set {name}").root.plain()
    return arguments


def with_arguments(environment: EnvironmentSpec, arguments: Mapping[str, Any]) -> EnvironmentSpec:
    """`environment` with these arguments in place of its own. Raises InvalidInput for one of its
    data sets."""
    for name in arguments:
        if name in environment.data:
            raise InvalidInput(f"--set {name}: is a data set of the job and cannot be changed")
    return replace(environment, kwargs={**environment.kwargs, **arguments})


def changed_environment(
    checkpoint: Path, arguments: Mapping[str, Any]
) -> environment_pb2.EnvironmentSpec | None:
    """The environment that a checkpoint was trained in, with these arguments; None where there are
    none."""
    if not arguments:
        return None
    return environment_to_message(with_arguments(trained_environment(checkpoint), arguments))


def _beside(file: StoredFile, checkpoint: Path) -> list[Path]:
    """The file in the object store that contains the checkpoint's folder."""
    return [folder / file.key for folder in checkpoint.parents if (folder / file.key).is_file()]


@contextmanager
def _local_copy(file: StoredFile, checkpoint: Path, connect: Connect) -> Iterator[Path]:
    if beside := _beside(file, checkpoint):
        yield beside[0]
        return
    with tempfile.TemporaryDirectory(prefix="podracer-environment-") as folder:
        yield _download(file, Path(folder, "artifact"), connect)


def _download(file: StoredFile, target: Path, connect: Connect) -> Path:
    name = "/".join(file.key.split("/")[:4])  # projects/p/artifacts/x/…
    try:
        with connect() as client:
            client.download(_name_of(client, name, file.sha256), target)
    except PodracerError as error:
        raise NotFound(
            f"the policy's environment needs {name}, which is neither in the checkpoint's object "
            f"store nor on the server: {error.message}",
            reason="ENVIRONMENT_FILES_NOT_FOUND",
        ) from error
    return target / file.key.rpartition("/")[2]


def _name_of(client: Client, name: str, sha256: str) -> str:
    """The name under which the server has this content: `name` may have other content now. Raises
    NotFound."""
    for each in (name, f"{name}.{sha256[:_DIGITS]}"):
        with suppress(NotFound):
            if client.describe(each).sha256 == sha256:
                return each
    raise NotFound(f"it has no {name} with the SHA-256 {sha256}", name=name)
