"""Pods as Jobs of a Kubernetes cluster: `pool` is the backend, `cluster` a copy of its objects,
`template` and `job` the objects to create, `status` their state."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.pool.kubernetes import pool, status
    from podracer_orchestrator.pool.kubernetes.job import JobMaker
    from podracer_orchestrator.pool.kubernetes.pool import KubernetesPool
    from podracer_orchestrator.pool.kubernetes.template import read_profiles
    from podracer_orchestrator.pool.kubernetes.template import place, read_template
else:
    __all__, __getattr__ = exports(__name__)
