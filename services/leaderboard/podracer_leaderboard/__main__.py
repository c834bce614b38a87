"""`python -m podracer_leaderboard`."""

from podracer_core.service.process import main
from podracer_leaderboard.server import LeaderboardConfig, serve

if __name__ == "__main__":
    main("leaderboard", LeaderboardConfig, serve)
