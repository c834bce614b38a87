"""Everything on one machine, for `podracer run` and `podracer up`.

services     the folder with all durable state; the processes over it
foreground   `podracer run` and `up`
machine      `podracer doctor`
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.local import foreground, machine, services
    from podracer_client.local.foreground import Foreground, keep_up, run_experiment, run_job
    from podracer_client.local.machine import Finding, examine
    from podracer_client.local.services import (
        READY_TIMEOUT_S, Connect, LocalServices, ServiceOptions, StateFolder, inherited_environment,
        leaderboard_plan, orchestrator_plan, private_evaluator, require_services, resting_services,
        running_or_resting,
    )
else:
    __all__, __getattr__ = exports(__name__)
