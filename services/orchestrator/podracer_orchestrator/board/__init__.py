"""Calls to the leaderboard.

client     the calls
delivery   delivery of results, from the outbox
requests   requests: cohorts, the candidates of ensembles
"""
