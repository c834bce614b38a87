"""Assembles the parts of an orchestrator and runs their tasks."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping

import grpc
from sqlalchemy.orm import Session

from podracer_core.storage import ObjectStore
from podracer_orchestrator.artifacts import RetentionTask, Uploads
from podracer_orchestrator.board import (
    AgentActs,
    CohortProposer,
    Delivery,
    EnsembleMaker,
    LeaderboardClient,
)
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.continuous import GenerationTask
from podracer_orchestrator.dispatch import Dispatcher, Gauges, LeaseOperations, Sweep
from podracer_orchestrator.jobs import Quotas
from podracer_orchestrator.leases import LeaseDeadlines
from podracer_orchestrator.outcomes import ending
from podracer_orchestrator.pool import (
    LocalPool,
    PoolBackend,
    PoolReconciler,
    PoolShares,
    StaticPool,
)
from podracer_orchestrator.pool.kubernetes import read_profiles
from podracer_orchestrator.tables import SettingRow
from podracer_orchestrator.transactions import ChangeFeed, Clock, Transactions
from podracer_platform.database import wait_for_database
from podracer_platform.rpc import FileToken, LeaseTokens, open_aio_channel
from podracer_platform.storage import open_store

logger = logging.getLogger(__name__)

_LEASE_SECRET = "lease_secret"  # noqa: S105 - the name of a setting


class Orchestrator:
    """Everything behind the servicers. `start` begins its tasks, `stop_pods` and `close` end it."""

    def __init__(
        self,
        config: OrchestratorConfig,
        transactions: Transactions,
        changes: ChangeFeed,
        lease_tokens: LeaseTokens,
        store: ObjectStore,
        channel: grpc.aio.Channel,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self.changes = changes
        self.transactions = transactions
        self.store = store
        self.lease_tokens = lease_tokens
        self.deadlines = LeaseDeadlines(self.clock, config.lease_term_s)
        self.lease_operations = LeaseOperations(
            transactions, self.deadlines, store, changes, self.clock
        )
        self.quotas = Quotas(config.quotas)
        self.pod_profiles = read_profiles(config.pod_profiles)
        self.pool_shares = PoolShares(self.clock, self.quotas)
        self.pool_reconciler = PoolReconciler(
            transactions, self.lease_operations.lose_pod, self.pool_shares, changes, self.clock
        )
        board = self.board = LeaderboardClient(channel)
        self._delivery = Delivery(transactions, board, changes, self.clock)
        proposer = CohortProposer(transactions, self._delivery, self.clock)
        self.agent_acts = AgentActs(transactions, board, self._delivery, proposer, self.clock)
        self.dispatcher = Dispatcher(
            transactions,
            self.deadlines,
            lease_tokens,
            proposer,
            changes,
            self.clock,
            self.pool_shares,
        )
        self._ensembles = EnsembleMaker(transactions, board, self._delivery, changes, self.clock)
        self._generations = GenerationTask(transactions, changes, self.clock)
        self._sweep = Sweep(transactions, self.deadlines, self.lease_operations, self.clock)
        self.uploads = Uploads()
        self.retention = RetentionTask(
            transactions, board, self._delivery, store, self.uploads, self.clock, config
        )
        self._config = config
        self._channel = channel
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done once a task has failed: the process should end then."""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, config: OrchestratorConfig) -> Orchestrator:
        """Open the store, the database (once this process is active) and the channel to the
        leaderboard. Raises a PodracerError with the problem."""
        store = open_store(config.store)
        token = FileToken(config.tokens / "control")
        changes = ChangeFeed()
        database = await wait_for_database(
            config.database,
            "podracer_orchestrator.migrations",
            holder=config.instance,
            term_s=config.database_term,
            health=config.health_listen,
        )
        clock = Clock()
        transactions = Transactions(
            database, changes, functools.partial(ending.after_change, clock=clock)
        )
        try:
            secret = await transactions.write(_load_or_create_secret)
            channel = open_aio_channel(
                config.leaderboard, token, config.channel_options("leaderboard")
            )
            return cls(config, transactions, changes, LeaseTokens(secret), store, channel, clock)
        except BaseException:
            await database.close()
            raise

    async def start(self, address: str) -> None:
        """Recover the state of a former process and start the tasks; pods reach this orchestrator
        at `address`."""
        await self.lease_operations.recover()
        await self.pool_reconciler.adopt(self._make_pool(address))
        gauges = Gauges(self.transactions)
        for part in (
            self.pool_reconciler,
            self._delivery,
            self._ensembles,
            self._generations,
            self._sweep,
            self.retention,
            gauges,
        ):
            task = asyncio.create_task(part.run())
            task.add_done_callback(self._note_end)
            self._tasks.append(task)

    @property
    def needs(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The required dependencies, each with a check that raises if it does not answer."""
        return {
            "the database": self.transactions.check,
            "the object store": lambda: asyncio.to_thread(self.store.check),
            "the pool": self.pool_reconciler.check,
        }

    async def stop_pods(self) -> None:
        """Answer every waiting pod, and stop the pods that this orchestrator has made; calls are
        still served."""
        self.dispatcher.drain()
        self.lease_operations.orders.drain()
        await self.pool_reconciler.stop()

    async def close(self) -> None:
        """End the tasks and release all resources."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        await self.transactions.close()
        self.store.close()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Tasks run forever: log one that ends with an error, and end the process."""
        if task.cancelled() or self.failed.done():
            return
        logger.critical("a task of the orchestrator has failed", exc_info=task.exception())
        self.failed.set_result(None)

    def _make_pool(self, address: str) -> PoolBackend:
        config = self._config
        if config.pool == "kubernetes":
            from podracer_orchestrator.pool.kubernetes import KubernetesPool

            return KubernetesPool(config, self.pool_reconciler, self.pod_profiles)
        return (
            LocalPool(config, address, self.pool_reconciler)
            if config.pool == "local"
            else StaticPool()
        )


def _load_or_create_secret(session: Session) -> bytes:
    """The secret of lease tokens: in the database, so that leases outlive a restart."""
    row = session.get(SettingRow, _LEASE_SECRET)
    if row is None:
        row = SettingRow(name=_LEASE_SECRET, value=secrets.token_bytes(32))
        session.add(row)
    return row.value
