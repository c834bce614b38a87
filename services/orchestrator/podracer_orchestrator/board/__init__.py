"""Calls to the leaderboard.

client     the leaderboard as it is called
delivery   what it is told, from the outbox
requests   what it is asked: cohorts, the candidates of ensembles
"""
