"""Leases: their rows, those that follow another, their deadlines in memory, and what they tell pods."""
