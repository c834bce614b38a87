"""The training pool: how many pods each job has, the rows of pods, and the backends that make them:
`static` waits for pods that come by themselves, `local` starts processes of this machine,
`kubernetes` makes Jobs of a cluster."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.pool import machine, pods, reconciler
    from podracer_orchestrator.pool.backend import (
        Capacity,
        PodPlan,
        PoolBackend,
        StaticPool,
        Trouble,
    )
    from podracer_orchestrator.pool.capacity import capacity_message, pod_uses
    from podracer_orchestrator.pool.capacity import choose_pods
    from podracer_orchestrator.pool.local import LocalPool
    from podracer_orchestrator.pool.local_pod import (
        DRAIN_GRACE_S,
        LEARNER,
        LEARNER_GRACE_S,
        STOP_GRACE_S,
        LocalPod,
    )
    from podracer_orchestrator.pool.machine import Gpu, Gpus, Machine
    from podracer_orchestrator.pool.pods import PodReport
    from podracer_orchestrator.pool.reconciler import PoolReconciler
    from podracer_orchestrator.pool.scheduling import (
        PAUSE_S,
        SETTLE_S,
        Demand,
        FairShare,
        Growth,
        Load,
        MemoryBudget,
        MemoryNeeds,
        MemoryView,
        Room,
        share_pods,
    )
    from podracer_orchestrator.pool.shares import PoolShares
else:
    __all__, __getattr__ = exports(__name__)
