"""The gRPC services of clients and pods: they decode, call the domain and encode.

job_service, artifact_service, pod_service   the services
job_changes, watching                        changing a job; snapshots and events for watchers
messages                                     jobs, pods, events and promotions as clients see them
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.api import artifact_service, job_changes, job_service, pod_service
else:
    __all__, __getattr__ = exports(__name__)
