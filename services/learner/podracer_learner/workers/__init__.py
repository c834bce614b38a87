"""Rollouts from workers: who they are, which environments each has, and what becomes of those that are late or lost."""
