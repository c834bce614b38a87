"""Every job file of the repository as the message that a server gets, with all defaults."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from podracer.orchestrator.v1 import artifact_service_pb2
from podracer_client.artifacts import upload_files
from podracer_platform.jobs import load_experiment
from support.golden import FOLDER, check_golden, pretty
from support.processes import EXAMPLES, ROOT

NOT_IN_FILES = {
    *(
        "environment.data",
        "environment.evaluation_steps",
        "environment.observation_origin",
    ),  # of packages and servers
    "founders",  # of `warm_start`, which the client looks up
}

LEFT_OUT = {
    *("go/buf.gen.yaml", "typescript/buf.gen.yaml"),  # no job files
    *("munchausen_dqn/cartpole.yaml", "maze/installed.yaml"),  # of packages that are not installed
}


class Store:
    """An object store that has every file already."""

    def GetArtifact(self, request: Any) -> Any:
        artifact = artifact_service_pb2.Artifact(uri=f"{request.name}/content")
        return artifact_service_pb2.GetArtifactResponse(artifact=artifact)


def messages(path: Path) -> list[Message]:
    jobs = [replace(job, warm_start=()) for job in load_experiment(path).jobs]
    found = [upload_files(Store(), job).to_message() for job in jobs]  # type: ignore[arg-type]
    for code in (job.environment.code for job in found if job.environment.HasField("code")):
        code.key, code.sha256, code.size_bytes = "key", "0" * 64, 1  # an example's code may change
    return found


def document(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def test_job_files(tmp_path):
    zoo = next(ROOT.glob("libs/*/*/zoo"))
    files = {
        f"{path.parent.name}/{path.name}": path
        for top in (EXAMPLES, zoo)
        for path in top.rglob("*.yaml")
    }
    shutil.copy(
        EXAMPLES / "stock_trading" / "prices.csv", tmp_path
    )  # which trading.yaml expects beside it
    files["examples/trading.yaml"] = Path(shutil.copy(EXAMPLES / "trading.yaml", tmp_path))
    found = {
        name: list(map(document, messages(path)))
        for name, path in files.items()
        if name not in LEFT_OUT
    }
    check_golden("job_files.json", pretty(found) + "\n")


def unset(kind: Any, filled: list[Message], path: str = "") -> set[str]:
    """The fields that no message sets."""
    missing = set()
    for field in kind.fields:
        name = f"{path}{field.name}"
        if name in NOT_IN_FILES:
            continue
        values = [
            getattr(each, field.name)
            for each in filled
            if field.name in {f.name for f, _ in each.ListFields()}
        ]
        if not values:
            missing.add(name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.full_name.startswith(
            "podracer."
        ):
            if field.message_type.GetOptions().map_entry:
                continue
            inner = [
                one
                for value in values
                for one in ([value] if isinstance(value, Message) else value)
            ]
            missing |= unset(field.message_type, inner, f"{name}.")
    return missing


def test_every_field():
    files = sorted((FOLDER / "jobs").glob("*.yaml"))
    found = {path.stem: messages(path)[0] for path in files}
    assert unset(found["one"].DESCRIPTOR, list(found.values())) == set()
    documents: dict[str, Any] = {name: document(each) for name, each in found.items()}
    starts = (load_experiment(path).jobs[0].warm_start for path in files)
    documents["warm_start"] = [asdict(start) for start in starts if start]  # type: ignore[call-overload]
    check_golden("every_field.json", pretty(documents) + "\n")
