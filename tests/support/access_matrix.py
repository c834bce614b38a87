"""`python -m support.access_matrix`: writes into docs/security.md who may call what, as the protos
state it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from google.api import resource_pb2
from google.protobuf import descriptor_pool

from podracer_platform.rpc.auth import access_of, methods_of
from podracer_platform.rpc.limits import REQUEST_BYTES
from support.processes import ROOT

SERVERS = ("orchestrator", "leaderboard", "policy", "learner", "worker", "evaluator")
PAGE = ROOT / "docs" / "security.md"
TABLE = re.compile(r"(?<=<!-- the table begins -->\n)(.*)(?=<!-- the table ends -->)", re.DOTALL)
HEADER = "\n| method | roles | project | bytes | log |\n|---|---|---|---|---|\n"


def matrix() -> str:
    """The table."""
    return (
        HEADER + "".join(_row(method) for server in SERVERS for method in methods_of(server)) + "\n"
    )


def _row(method: str) -> str:
    access, server = access_of(method), method.split(".")[1]
    roles = ", ".join(sorted(methods_of(server)[method]))
    found = descriptor_pool.Default().FindMethodByName(method[1:].replace("/", "."))
    names = ", ".join(f"`{name}`" for name in _names(found.input_type)) or "–"
    size, log = access.max_bytes or REQUEST_BYTES, "yes" if access.act else ""
    return f"| `{method.removeprefix('/podracer.')}` | {roles} | {names} | {size:,} | {log} |\n"


def _names(message: object) -> Iterator[str]:
    """The fields of a request that name resources, also in the headers of streams."""
    for field in message.fields:  # type: ignore[attr-defined]
        if field.GetOptions().HasExtension(resource_pb2.resource_reference):
            yield field.name
        elif field.message_type is not None and field.containing_oneof is not None:
            yield from (f"{field.name}.{name}" for name in _names(field.message_type))


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(matrix(), PAGE.read_text()))
