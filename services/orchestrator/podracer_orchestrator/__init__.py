"""The orchestrator: owns jobs, pods and leases, and is the only writer of the leaderboard."""

__version__ = "0.1.0"
