"""`python -m podracer_orchestrator`."""

import os
import sys

from podracer_platform.service import warm_start

if __name__ == "__main__":
    if os.environ.get("PODRACER_POOL") == "local" and sys.argv[1:] == []:
        # It imports torch for the pods while this process imports what follows.
        warm_start.start_server(os.environ.get("PODRACER_RUN_DIR"))

    from podracer_orchestrator.config import OrchestratorConfig
    from podracer_orchestrator.server import serve
    from podracer_platform.service.process import main

    main("orchestrator", OrchestratorConfig, serve)
