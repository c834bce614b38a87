"""What the protos say to people they say to machines of other languages, too: behaviours,
resources, Go packages."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api import field_behavior_pb2, resource_pb2
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from support.processes import ROOT

BEHAVIOURS = {
    field_behavior_pb2.REQUIRED: re.compile(r"(^|[.;] )Required[.;]"),
    field_behavior_pb2.OUTPUT_ONLY: re.compile(r"Output only\."),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    """Ours, with their comments."""
    target, protos = tmp_path_factory.mktemp("protos") / "podracer.binpb", ROOT / "protos"
    found = sorted(str(path.relative_to(protos)) for path in protos.rglob("podracer/**/*.proto"))
    include = (
        str(protos),
        sysconfig.get_path("purelib"),
        str(Path(protoc.__file__).parent / "_proto"),
    )
    paths = [f"--proto_path={folder}" for folder in include]
    command = ["protoc", *paths, "--include_source_info", f"--descriptor_set_out={target}", *found]
    assert protoc.main(command) == 0
    return list(descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file)


def fields(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[str, descriptor_pb2.FieldDescriptorProto, str]]:
    """Every field of a file's messages: its full name, itself, and its comment."""
    comments = {
        tuple(place.path): " ".join(place.leading_comments.split())
        for place in file.source_code_info.location
    }
    for i, message in enumerate(file.message_type):
        for j, field in enumerate(message.field):
            yield f"{message.name}.{field.name}", field, comments.get((4, i, 2, j), "")


def test_field_behaviours_are_those_of_the_comments(files):
    for name, field, comment in (each for file in files for each in fields(file)):
        behaviours = set(field.options.Extensions[field_behavior_pb2.field_behavior]) - {
            field_behavior_pb2.IDENTIFIER
        }
        assert behaviours <= set(BEHAVIOURS), name
        for behaviour, words in BEHAVIOURS.items():
            is_identifier = field.options.Extensions[field_behavior_pb2.field_behavior] == [
                field_behavior_pb2.IDENTIFIER
            ]
            assert (behaviour in behaviours) == bool(words.search(comment)) or is_identifier, (
                name,
                comment,
            )


def test_every_resource_that_a_field_names_is_defined(files):
    defined = {
        one.type
        for file in files
        for one in file.options.Extensions[resource_pb2.resource_definition]
    }
    messages = [message for file in files for message in file.message_type]
    defined |= {message.options.Extensions[resource_pb2.resource].type for message in messages} - {
        ""
    }
    assert len(defined) == 7
    for file in files:
        for name, field, _ in fields(file):
            reference = field.options.Extensions[resource_pb2.resource_reference]
            assert {reference.type, reference.child_type} <= defined | {"", "*"}, name


def test_each_file_has_a_go_package(files):
    for file in files:
        service, version = file.package.split(".")[1:]
        module = f"github.com/podracer-rl/podracer/go/{service}/{version};{service}{version}"
        assert file.options.go_package == module
