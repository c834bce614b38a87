"""Trading agents that keep learning: new days, contests, rollbacks, an orchestrator that is killed
in the middle."""

from __future__ import annotations

import itertools
import json
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_client import Client
from podracer_core.errors import PodracerError
from support.processes import Command, wait_until
from support.stock_market import Row, days_of, market_rows, write_csv

JOB = """
name: {name}
environment:
  id: StockTrading-v0
  kwargs: {{indicators: [], evaluation_split: validation, max_stock: 1000}}
data: {{table: {{data_set: market}}}}
objective: {{max_env_steps: 8_192}}
search: {{algorithms: [ppo], space: {{horizon: 32}}}}
evolution: {{population: 2, leaderboard_size: 2, round: {{env_steps: 2_048}}}}
pod: {{count: 1, members: 2, envs_per_member: 16, layout: fused}}
evaluation: {{episodes: 8}}
continuous: {{contest: {{evaluation_split: test}}, margin: {margin}}}
"""
SCHEDULED = """
name: clock
environment: {id: CartPole-v1}
objective: {max_env_steps: 4_096}
search: {algorithms: [ppo], space: {horizon: 32}}
evolution: {population: 2, leaderboard_size: 2, round: {env_steps: 2_048}}
pod: {count: 1, members: 2, envs_per_member: 16, layout: fused}
evaluation: {episodes: 8}
continuous: {interval: 1s}
"""
PROMOTED, KEPT, ROLLED_BACK = 1, 2, 4


def turning_market(bars: int, turn: int) -> list[Row]:
    """AAA rises by a hundredth a day and AAB falls; from the day `turn` on it is the other way
    round."""
    rows = market_rows(tickers=2, bars=bars, seed=7, volatility=0.004)
    place = {day: number for number, day in enumerate(days_of(rows))}
    changed = []
    for row in rows:
        days = turn - abs(turn - place[row["time"]])
        factor = 1.01 ** (days if row["ticker"] == "AAA" else -days)
        changed.append(
            row | {name: row[name] * factor for name in ("open", "high", "low", "close")}
        )
    return changed


@dataclass
class Site:
    """`podracer up` in a folder of its own, and a client of it."""

    up: Command
    client: Client
    folder: Path

    def kill_orchestrator(self) -> None:
        """As a power cut would; `podracer up` starts it again."""
        (orchestrator,) = wait_until(
            lambda: self.up.services("podracer_orchestrator"), 60, "the orchestrator"
        )
        orchestrator.send_signal(signal.SIGKILL)
        orchestrator.wait(60)

    def ask(self, what: Callable[[Client], Any]) -> Any:
        """What the server says; None while it is being started again."""
        try:
            return what(self.client)
        except PodracerError:
            return None

    def decisions(self, job: str) -> list[Any]:
        return self.ask(lambda client: client.promotions(job)) or []

    def champion(self, job: str) -> leaderboard_pb2.AliasChange | None:
        """What a policy server follows."""
        board = f"projects/default/leaderboards/{job}"
        request = leaderboard_pb2.ListAliasHistoryRequest(leaderboard=board, alias="champion")
        changes = self.ask(
            lambda client: client.leaderboard_service.ListAliasHistory(request).changes
        )
        return changes[0] if changes else None

    def env_steps(self, job: str) -> int:
        return self.ask(lambda client: client.job(job).progress.env_steps) or 0

    def wait_for_event(self, job: str, kind: str) -> None:
        def has_come() -> bool:
            found = self.ask(lambda client: list(client.events(job)))
            return any(event.kind == kind for event in found or [])

        wait_until(has_come, 180, f"{kind} of {job}")

    def open_contest_works(self, job: str) -> int:
        """Incomplete evaluations of the contest of `job`, as the database on disk has them."""
        query = (
            "SELECT count(*) FROM works JOIN jobs ON works.job_uid = jobs.uid WHERE job_id = "
            "? AND contest != ''"
        )
        query += " AND works.state IN ('READY', 'LEASED')"
        with sqlite3.connect(
            f"file:{self.folder}/orchestrator.sqlite?mode=ro", uri=True, timeout=30
        ) as database:
            return int(database.execute(query, (job,)).fetchone()[0])


@pytest.fixture
def site(up: Callable[..., Command], tmp_path: Path) -> Any:
    server = up("--max-pods", "1")
    with Client.connect(folder=tmp_path / "runs") as client:
        yield Site(server, client, tmp_path / "runs")


@pytest.mark.thorough
def test_agents_keep_learning_whatever_dies(site, run, tmp_path):
    """Two jobs watch one data set: `trader` promotes any better policy, `careful` none."""

    def fine(*words: str) -> Command:
        command = run(*words)
        assert command.returncode == 0, (words, command.stderr)
        return command

    for name, margin in (("trader", 0), ("careful", 1_000_000)):
        (tmp_path / f"{name}.yaml").write_text(JOB.format(name=name, margin=margin))
    refused = run("run", "trader.yaml")
    assert refused.returncode != 0 and "such a job never ends; start a server" in refused.stderr
    missing = run("submit", "trader.yaml")
    assert missing.returncode != 0 and "has no data set 'market'" in missing.stderr
    rows = turning_market(bars=280, turn=90)
    days = days_of(rows)
    write_csv(tmp_path / "first.csv", [row for row in rows if row["time"] < days[90]])
    write_csv(tmp_path / "newer.csv", [row for row in rows if row["time"] >= days[80]])
    fine("data", "import", "first.csv", "--name", "market", "--json")
    for name in ("trader", "careful"):
        fine("submit", f"{name}.yaml", "--id", name)
    wait_until(
        lambda: site.decisions("trader") and site.decisions("careful"), 180, "the first champions"
    )
    first = {name: site.decisions(name)[0] for name in ("trader", "careful")}
    for name, promotion in first.items():
        assert (promotion.generation, promotion.challenger.agent) == (1, promotion.policy.agent), (
            name
        )

    # New days. The orchestrator is killed before it has begun anything, while a challenger learns,
    # and in the middle of both contests.
    (added,) = fine("data", "import", "newer.csv", "--name", "market", "--append", "--json").events
    assert added["added_rows"] == 2 * 190
    site.kill_orchestrator()
    for name in ("trader", "careful"):
        site.wait_for_event(f"{name}-2", "JOB_CREATED")
    wait_until(
        lambda: any(site.env_steps(f"{name}-2") for name in first),
        120,
        "the first steps of a challenger",
    )
    site.kill_orchestrator()
    interrupted = {}
    waiting = list(first)
    while waiting:

        def begun() -> str | None:
            return next((name for name in waiting if site.open_contest_works(f"{name}-2")), None)

        name = wait_until(begun, 240, f"the contest of {' or '.join(waiting)}")
        site.kill_orchestrator()
        interrupted[name] = site.open_contest_works(f"{name}-2")
        waiting.remove(name)
    assert all(interrupted.values()), "it was killed in the middle"
    wait_until(lambda: all(len(site.decisions(name)) == 2 for name in first), 240, "the contests")
    won, kept = site.decisions("trader")[0], site.decisions("careful")[0]
    for name, second in (("trader", won), ("careful", kept)):
        assert (second.generation, second.data_sha256) == (2, added["sha256"])
        assert second.champion.agent == first[name].policy.agent
        assert second.challenger.agent.startswith(f"projects/default/jobs/{name}-2/")
        assert second.champion.seeds == second.challenger.seeds
        assert second.challenger.mean > second.champion.mean, second.reason
        agents = site.client.agents(f"projects/default/leaderboards/{name}-2")
        assert list(agents[0].parents) == [first[name].policy.agent], "it began with the champion"
        assert agents[0].env_steps and not agents[0].failure, agents[0].failure
        generations = [
            job.message.generation
            for job in site.client.jobs()
            if job.message.parent.endswith(name)
        ]
        assert generations == [2, 1]
    assert (won.decision, won.policy.agent) == (PROMOTED, won.challenger.agent), won.reason
    assert (kept.decision, kept.policy.agent) == (KEPT, kept.champion.agent), kept.reason
    assert "it takes more than 1e+06 above" in kept.reason
    wait_until(lambda: site.champion("trader").agent == won.policy.agent, 60, "the alias")
    assert site.champion("careful").agent == first["careful"].policy.agent

    # A rollback that is acknowledged is heard of, whatever dies right afterwards.
    fine("rollback", "trader", "--reason", "I do not trust it")
    site.kill_orchestrator()
    wait_until(
        lambda: (now := site.champion("trader")) and now.agent == first["trader"].policy.agent,
        60,
        "the alias to go back",
    )
    assert site.champion("trader").checkpoint.prefix == first["trader"].policy.checkpoint.prefix
    wait_until(lambda: site.ask(lambda client: client.job("trader")), 60, "the orchestrator")
    again = run("rollback", "trader")
    assert again.returncode != 0 and "has pointed at one policy only" in again.stderr
    (promoted,) = fine("promote", "trader", "--reason", "by hand", "--json").events
    assert promoted["policy"].startswith(won.policy.agent)
    wait_until(lambda: site.champion("trader").agent == won.policy.agent, 60, "the alias")
    listed = [json.loads(line) for line in fine("history", "trader", "--json").lines]
    assert [each["decision"] for each in listed] == [
        "PROMOTED",
        "ROLLED_BACK",
        "PROMOTED",
        "PROMOTED",
    ]
    shown = "\n".join(fine("job", "trader").lines)
    assert "waits for    other data" in shown and "champion     trader-2/" in shown
    assert "by hand" in "\n".join(fine("history", "trader").lines)
    for words in (
        ["export", "trader", "--output", "policy.pt2"],
        ["report", "trader"],
        ["leaderboard", "trader"],
        ["jobs"],
        ["evaluate", "trader", "--set", "evaluation_split=test"],
    ):
        fine(*words)
    refused = run("data", "delete", "market")
    assert refused.returncode != 0 and "is needed by projects/default/jobs/" in refused.stderr
    refused = run("delete", "trader")
    assert (
        refused.returncode != 0
        and "the job is RUNNING: cancel it before it is deleted" in refused.stderr
    )
    refused = run("delete", "trader-1")
    assert refused.returncode != 0 and "needs the checkpoint" in refused.stderr
    for name in first:
        fine("cancel", name)
    assert len(site.client.jobs()) == 6, "nothing began again after the rollback"
    for name in first:
        fine("delete", name)
    assert site.client.jobs() == []
    fine("data", "delete", "market")


@pytest.mark.thorough
def test_a_schedule_begins_generations(site, run, tmp_path):
    (tmp_path / "clock.yaml").write_text(SCHEDULED)
    submitted = run("submit", "clock.yaml", "--id", "clock")
    assert submitted.returncode == 0, submitted.stderr
    wait_until(lambda: site.decisions("clock"), 120, "the first champion")
    site.wait_for_event("clock-2", "JOB_CREATED")
    site.kill_orchestrator()
    wait_until(lambda: len(site.decisions("clock")) >= 3, 180, "the third generation")
    assert run("cancel", "clock").returncode == 0
    decisions = site.decisions("clock")[::-1]
    assert [each.generation for each in decisions] == list(range(1, len(decisions) + 1)), (
        "each once"
    )
    assert decisions[0].decision == PROMOTED
    for earlier, later in itertools.pairwise(decisions):
        assert later.decision in (PROMOTED, KEPT), later.reason
        assert later.champion.agent == earlier.policy.agent
        is_promoted = later.decision == PROMOTED
        assert later.policy.agent == (later.challenger if is_promoted else later.champion).agent
    names = sorted(
        job.message.name.rpartition("/")[2] for job in site.client.jobs() if job.message.parent
    )
    assert names[: len(decisions)] == [f"clock-{each.generation}" for each in decisions]
