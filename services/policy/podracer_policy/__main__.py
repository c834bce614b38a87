"""`python -m podracer_policy`."""

import sys

from podracer_core.process import run_service
from podracer_policy.config import PolicyConfig
from podracer_policy.server import serve

if __name__ == "__main__":
    sys.exit(run_service("policy", PolicyConfig, serve))
