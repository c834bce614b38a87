"""A trading agent that keeps learning: new days, a contest, a rollback, and an orchestrator that is killed."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2
from podracer_client import Client
from podracer_core.errors import PodracerError
from support.processes import Command, wait_until
from support.stock_market import market_rows, write_csv

JOB = """
name: trader
environment:
  id: StockTrading-v0
  kwargs: {indicators: [], evaluation_split: validation, max_stock: 10}
data: {table: {data_set: market}}
objective: {max_env_steps: 8_192}
search: {algorithms: [ppo], space: {horizon: 32}}
evolution: {population: 2, leaderboard_size: 2, round: {env_steps: 2_048}}
pod: {count: 1, members: 2, envs_per_member: 16, layout: fused}
evaluation: {episodes: 8}
continuous: {contest: {evaluation_split: test}}
"""
ROWS = market_rows(tickers=3, bars=160, seed=7)


def rows_until(bars: int) -> list[dict[str, Any]]:
    days = sorted({row["time"] for row in ROWS})[:bars]
    return [row for row in ROWS if row["time"] <= days[-1]]


def upload(client: Client, path: Path) -> None:
    """Store a table as the data set `market`."""
    content = path.read_bytes()
    header = artifact_pb2.UploadHeader(
        artifact_id="market",
        kind=artifact_pb2.ARTIFACT_KIND_DATA_SET,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    parts = [artifact_pb2.UploadRequest(header=header), artifact_pb2.UploadRequest(data=content)]
    client.artifact_service.Upload(iter(parts))


def replace(state: Path, path: Path) -> None:
    """Have the data set `market` stand for another table from now on."""
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    key = f"projects/default/artifacts/market/{sha256[:16]}-file"
    stored = state / "objects" / key
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(content)
    with sqlite3.connect(state / "orchestrator.sqlite", timeout=30) as database:
        values = (key, sha256, len(content))
        database.execute(
            "UPDATE artifacts SET key = ?, sha256 = ?, size_bytes = ? WHERE artifact_id = 'market'", values
        )


def decisions(client: Client) -> list[Any]:
    try:
        return client.promotions("trader")
    except PodracerError:  # the orchestrator is being started again
        return []


def champion(client: Client) -> leaderboard_pb2.AliasChange:
    """What a policy server follows."""
    request = leaderboard_pb2.ListAliasHistoryRequest(
        leaderboard="projects/default/leaderboards/trader", alias="champion"
    )
    return client.leaderboard_service.ListAliasHistory(request).changes[0]


def ended(client: Client, name: str) -> bool:
    try:
        return client.job(name).ended
    except PodracerError:
        return False


def test_an_agent_keeps_learning_whatever_dies(
    podracer: Callable[..., Command], run: Callable[..., Command], tmp_path: Path
) -> None:
    state = tmp_path / "runs"
    (tmp_path / "job.yaml").write_text(JOB)
    refused = run("run", "job.yaml")
    assert refused.process.returncode != 0 and "such a job never ends; start a server" in refused.stderr
    up = podracer("up", "--max-pods", "1")
    wait_until((state / "connection.json").exists, 60, "the services")
    missing = run("submit", "job.yaml")
    assert missing.process.returncode != 0 and "has no data set 'market'" in missing.stderr
    with Client.connect(folder=state) as client:
        upload(client, write_csv(tmp_path / "market.csv", rows_until(120)))
        submitted = run("submit", "job.yaml", "--id", "trader")
        assert submitted.process.returncode == 0, submitted.stderr
        wait_until(lambda: decisions(client), 180, "the first champion")
        (first,) = decisions(client)
        assert (first.generation, first.challenger.agent) == (1, first.policy.agent)

        # New days; the orchestrator is killed as soon as the challenger has begun to learn.
        replace(state, write_csv(tmp_path / "more.csv", rows_until(160)))
        wait_until(lambda: ended(client, "trader-1") and len(client.jobs()) == 3, 60, "the second generation")
        wait_until(lambda: client.job("trader-2").progress.agent_count, 120, "its first agents")
        (orchestrator,) = up.services("podracer_orchestrator")
        orchestrator.send_signal(signal.SIGKILL)
        wait_until(lambda: len(decisions(client)) == 2, 240, "the contest")
        second = decisions(client)[0]
        assert second.data_sha256 == hashlib.sha256((tmp_path / "more.csv").read_bytes()).hexdigest()
        assert second.champion.agent == first.policy.agent
        assert second.champion.seeds == second.challenger.seeds
        is_better = second.challenger.mean > second.champion.mean
        assert second.decision == (1 if is_better else 2), second.reason
        assert second.policy.agent == (second.challenger if is_better else second.champion).agent
        agents = client.agents("projects/default/leaderboards/trader-2")
        assert list(agents[0].parents) == [first.policy.agent], "it began with the champion"
        assert agents[0].env_steps and not agents[0].failure, agents[0].failure
        assert [job.message.generation for job in client.jobs() if job.message.parent] == [2, 1]

        promoted = run("promote", "trader", "--reason", "by hand", "--json")
        (found,) = promoted.events
        assert found["policy"].startswith("projects/default/jobs/trader-2/agents/")
        wait_until(lambda: champion(client).agent == found["policy"].split("/checkpoints/")[0], 20, "the alias")
        back = run("rollback", "trader")
        assert back.process.returncode == 0, back.stderr
        while run("rollback", "trader").process.returncode == 0:
            pass
        wait_until(lambda: champion(client).agent == first.policy.agent, 20, "the alias to go back")
        assert champion(client).checkpoint.prefix == first.policy.checkpoint.prefix
        listed = [json.loads(line) for line in run("history", "trader", "--json").lines]
        assert [each["decision"] for each in listed][-2:] == ["PROMOTED" if is_better else "KEPT", "PROMOTED"]
        assert listed[0]["decision"] == "ROLLED_BACK"
        shown = "\n".join(run("job", "trader").lines)
        assert "waits for    other data" in shown and "champion     trader-1/" in shown
        assert "by hand" in "\n".join(run("history", "trader").lines)
        for words in (
            ["export", "trader", "--output", "policy.pt2"],
            ["report", "trader"],
            ["leaderboard", "trader"],
            ["jobs"],
        ):
            command = run(*words)
            assert command.process.returncode == 0, (words, command.stderr)
        run("cancel", "trader")
        assert len(client.jobs()) == 3, "nothing began again after the rollback"
