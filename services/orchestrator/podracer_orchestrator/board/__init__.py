"""Calls to the leaderboard: what it is told from the outbox, and what it is asked for."""
