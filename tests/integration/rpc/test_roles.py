"""Who may call what: every method of every running server does what the table in docs/security.md
says."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from podracer_core.errors import (
    Exhausted,
    InvalidInput,
    PermissionRefused,
    PodracerError,
    Unauthenticated,
)
from podracer_evaluator.server import EvaluatorConfig, create_evaluator_server
from podracer_leaderboard.server import MIGRATIONS as BOARDS
from podracer_leaderboard.server import LeaderboardConfig, create_leaderboard_server
from podracer_learner.config import LearnerConfig
from podracer_learner.fusion import FollowerRegistry
from podracer_learner.round import Commands, LearnerStatus
from podracer_learner.server import create_learner_server
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.server import create_server
from podracer_platform.database import open_database
from podracer_platform.rpc import (
    PUBLIC_KEYS,
    ChannelOptions,
    Claims,
    LeaseTokens,
    Role,
    WorkQueue,
    bearer,
    open_channel,
    sign,
)
from podracer_policy.policies import Batcher, ServedPolicies
from podracer_policy.server import PolicyConfig, create_policy_server
from podracer_worker.server import WorkerConfig, create_worker_server
from support.access_matrix import PAGE, SERVERS, TABLE, matrix

NO_MESSAGE = b"\xff"
BAD_TOKENS = (None, "guessed", "", "lease.l.1.forged", "pdr1.e30.forged")


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    method: str
    roles: set[str]
    names: list[str]
    most_bytes: int
    is_act: bool


def rows() -> Iterator[Row]:
    (table,) = TABLE.findall(PAGE.read_text())
    for line in table.strip().splitlines()[2:]:
        method, roles, names, size, log = (cell.strip() for cell in line.strip("|").split("|"))
        method = f"/podracer.{method.strip('`')}"
        yield Row(
            method,
            set(roles.split(", ")),
            re.findall("`(.+?)`", names),
            int(size.replace(",", "")),
            bool(log),
        )


def test_the_table_is_what_the_protos_state():
    assert TABLE.findall(PAGE.read_text()) == [matrix()], "run `make protos`"
    # what a viewer may do changes nothing, and nothing of what a pod does is an act
    for row in rows():
        assert not (row.is_act and row.roles & {"viewer", "pod", "lease"})
        assert "client" in row.roles or "viewer" not in row.roles


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """A token of each role, and of each one for the project `own` alone."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    for role in ("client", "pod", "control"):
        (folder / role).touch(mode=0o600)
        (folder / role).write_text(f"{role}-token\n{role}-own projects/own\n")
    viewers = [
        sign(b"s" * 32, Claims("1", "anna", "viewer", 1 << 40, projects, ()))
        for projects in ((), ("own",))
    ]
    (folder / PUBLIC_KEYS).write_text(f"{viewers[0][1]}\n")
    made = {
        f"{role}{kind}": f"{role}-{kind or 'token'}"
        for role in ("client", "pod", "control")
        for kind in ("", "own")
    }
    return made | {"viewer": viewers[0][0], "viewerown": viewers[1][0]}


@asynccontextmanager
async def running(server: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A server as its process makes it: its address, and a lease's token."""
    common: dict[str, Any] = {"tokens": folder / "tokens"}
    pod = common | {"cache_dir": folder / "cache", "shm_dir": folder}
    lease, name = LeaseTokens(b"s" * 32), "projects/own/leases/l"
    async with AsyncExitStack() as stack:
        if server == "orchestrator":
            urls = {"database": f"sqlite:///{folder}/o.sqlite", "store": f"file://{folder}/store"}
            orchestrator, address = await create_server(
                OrchestratorConfig(**common, **urls, leaderboard="127.0.0.1:1")
            )
            await orchestrator.start()
            stack.push_async_callback(orchestrator.stop, 0.1)
            yield address, orchestrator.orchestrator.lease_tokens.issue(name, 1)
            return
        if server == "leaderboard":
            boards = LeaderboardConfig(**common, database=f"sqlite:///{folder}/l.sqlite")
            database = await stack.enter_async_context(open_database(boards.database, BOARDS))
            made = await create_leaderboard_server(boards, database)
        elif server == "policy":
            policies, batcher = ServedPolicies(), Batcher()
            stack.push_async_callback(batcher.close)
            large = SimpleNamespace(observation_shape=(8192,), mask_parts=())
            policies.present = lambda: [large]  # type: ignore[method-assign, list-item, return-value]
            made = await create_policy_server(PolicyConfig(**common), policies, batcher)
        else:
            followers = FollowerRegistry()
            stack.enter_context(followers.serving(Mock()))
            learner = {"orchestrator": "127.0.0.1:1", "store": f"file://{folder}/store"}
            made = {
                "worker": lambda: create_worker_server(WorkerConfig(**pod), WorkQueue()),
                "evaluator": lambda: create_evaluator_server(
                    EvaluatorConfig(**pod), WorkQueue(), threading.Event()
                ),
                "learner": lambda: create_learner_server(
                    LearnerConfig(**pod, **learner), LearnerStatus(), Commands(), followers
                ),
            }[server]()
            stack.enter_context(made)
            yield made.address, lease.issue(name, 1)
            return
        await stack.enter_async_context(made)
        yield made.address, lease.issue(name, 1)


@pytest.mark.parametrize("server", SERVERS)
async def test_each_server_does_what_the_table_says(server, tmp_path, tokens, caplog):
    caplog.set_level("INFO", "podracer.audit")
    own = [row for row in rows() if row.method.startswith(f"/podracer.{server}.")]
    async with running(server, tmp_path) as (address, lease):
        await asyncio.to_thread(attack, address, own, tokens | {"lease": lease, "leaseown": lease})
    logged = {
        json.loads(line.message)["method"]
        for line in caplog.records
        if line.name == "podracer.audit"
    }
    assert {f"/podracer.{method}" for method in logged} == {row.method for row in own if row.is_act}


def attack(address: str, own: list[Row], tokens: dict[str, str]) -> None:
    """Call each method in every way that is not allowed. What is no message tells that a call was
    allowed: it comes no further than to the parser."""
    with open_channel(address, options=ChannelOptions(message_bytes=1 << 30)) as channel:

        def refusal(row: Row, token: str | None, request: bytes = NO_MESSAGE) -> PodracerError:
            metadata = bearer(token) if token is not None else ()
            with pytest.raises(PodracerError) as caught:
                list(
                    channel.stream_stream(row.method)(
                        iter([request]), timeout=60, metadata=metadata
                    )
                )
            return caught.value

        for row in own:
            for token in BAD_TOKENS:
                assert isinstance(refusal(row, token), Unauthenticated), (row, token)
            allowed = {
                role for role in Role if refusal(row, tokens[role]).reason == "INVALID_MESSAGE"
            }
            assert allowed == row.roles, row
            for role in set(Role) - row.roles - {"lease"}:
                assert isinstance(refusal(row, tokens[role]), PermissionRefused), (row, role)
            token = tokens[min(row.roles)]
            at_most, larger = (
                refusal(row, token, NO_MESSAGE * (row.most_bytes + more)) for more in (0, 1)
            )
            assert isinstance(at_most, InvalidInput) and at_most.reason == "INVALID_MESSAGE", row
            assert isinstance(larger, Exhausted) and "larger than max" in larger.message, row
            for role in row.roles:
                for name in row.names:
                    other = refusal(
                        row, tokens[f"{role}own"], about_another_project(row.method, name)
                    )
                    assert (type(other), other.reason) == (PermissionRefused, "OTHER_PROJECT"), (
                        row,
                        role,
                        name,
                    )


def about_another_project(method: str, name: str) -> bytes:
    """A request with another project's name in a field, such as `header.parent`."""
    *outer, last = name.split(".")
    request = GetMessageClass(
        descriptor_pool.Default().FindMethodByName(method[1:].replace("/", ".")).input_type
    )()
    part = request
    for field in outer:
        part = getattr(part, field)
    text = "projects/other/jobs/j/agents/a"
    if part.DESCRIPTOR.fields_by_name[last].is_repeated:
        getattr(part, last).append(text)
    else:
        setattr(part, last, text)
    found: bytes = request.SerializeToString()
    return found
