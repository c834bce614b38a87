"""`python -m podracer_leaderboard`."""

from podracer_leaderboard.server import LeaderboardConfig, serve
from podracer_platform.service.process import main

if __name__ == "__main__":
    main("leaderboard", LeaderboardConfig, serve)
