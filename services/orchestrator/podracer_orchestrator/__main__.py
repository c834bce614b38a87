"""`python -m podracer_orchestrator`."""

import sys

from podracer_core.process import run_service
from podracer_orchestrator.config import OrchestratorConfig
from podracer_orchestrator.server import serve

if __name__ == "__main__":
    sys.exit(run_service("orchestrator", OrchestratorConfig, serve))
