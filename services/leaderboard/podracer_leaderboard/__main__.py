"""`python -m podracer_leaderboard`."""

import sys

from podracer_core.process import run_service
from podracer_leaderboard.config import LeaderboardConfig
from podracer_leaderboard.server import serve

if __name__ == "__main__":
    sys.exit(run_service("leaderboard", LeaderboardConfig, serve))
