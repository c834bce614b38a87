"""Pods come by themselves: somebody else starts learners, which lease."""

from __future__ import annotations

from collections.abc import Sequence

from podracer_orchestrator.pool.backend import Capacity, PodPlan, PoolBackend


class StaticPool(PoolBackend):
    """Makes nothing and removes nothing."""

    name = "static"

    @property
    def capacity(self) -> Capacity | None:
        return None

    async def reconcile(self, wanted: Sequence[PodPlan]) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do: pods find the orchestrator gone and wait for the next one."""
