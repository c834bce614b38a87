"""`python -m podracer_orchestrator`."""

import os
import sys

from podracer_core import warm_start

if __name__ == "__main__":
    if os.environ.get("PODRACER_POOL") == "local" and sys.argv[1:] == []:
        warm_start.start_server()  # imports torch for the pods beside what is imported below

    from podracer_core.process import run_service
    from podracer_orchestrator.config import OrchestratorConfig
    from podracer_orchestrator.server import serve

    sys.exit(run_service("orchestrator", OrchestratorConfig, serve))
