"""Continuous jobs.

generations   the job of each generation
contests      champion against challenger, at its end
promotions    the policies of the aliases, now and before
"""
