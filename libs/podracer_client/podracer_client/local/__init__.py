"""Everything on one machine, for `podracer run` and `podracer up`.

state_folder, services   the folder with all durable state; the processes over it
run, experiments      the commands that run jobs
foreground               their common part, and `podracer up`
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.local import experiments, foreground, machine, run, services
    from podracer_client.local.experiments import run_experiment
    from podracer_client.local.foreground import Foreground, keep_up
    from podracer_client.local.machine import Finding, examine
    from podracer_client.local.run import run_job
    from podracer_client.local.services import (
        READY_TIMEOUT_S, Connect, LocalServices, ServiceOptions, inherited_environment,
        leaderboard_plan, orchestrator_plan, private_evaluator, require_services, resting_services,
        running_or_resting,
    )
    from podracer_client.local.state_folder import StateFolder
else:
    __all__, __getattr__ = exports(__name__)
