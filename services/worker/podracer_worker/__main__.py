"""`python -m podracer_worker`."""

from podracer_platform.service.process import main
from podracer_worker.server import WorkerConfig, serve

if __name__ == "__main__":
    main("worker", WorkerConfig, serve)
