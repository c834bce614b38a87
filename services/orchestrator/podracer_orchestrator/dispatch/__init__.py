"""LeaseWork and the calls of lease holders: assignment of work to pods, renewals and results."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.dispatch import capabilities, renewals
    from podracer_orchestrator.dispatch.capabilities import Capabilities
    from podracer_orchestrator.dispatch.dispatcher import Ask, Dispatcher
    from podracer_orchestrator.dispatch.lease_operations import LeaseOperations, Sweep
    from podracer_orchestrator.dispatch.metrics import Gauges
    from podracer_orchestrator.dispatch.renewals import actions
else:
    __all__, __getattr__ = exports(__name__)
