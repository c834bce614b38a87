"""`python -m podracer_worker`."""

import sys

from podracer_core.process import run_service
from podracer_worker.config import WorkerConfig
from podracer_worker.server import serve

if __name__ == "__main__":
    sys.exit(run_service("worker", WorkerConfig, serve))
