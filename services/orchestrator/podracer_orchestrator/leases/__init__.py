"""Leases: rows, followers, deadlines in memory, and messages for pods."""
