"""Conversion to messages and back, derived from the fields where they have the same names.

sections     search, evolution, objective, pod
catalogue    environments, spaces, hyperparameters; both without torch
training     cohorts, evaluations, what broke
"""
