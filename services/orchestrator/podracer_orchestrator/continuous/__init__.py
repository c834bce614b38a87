"""Continuous jobs.

generations   the job that each generation is
contests      champion against challenger, at its end
promotions    what the aliases point at, and have pointed at
"""
