"""Pieces of work: those that wait, proposed cohorts, evaluations, and which checkpoints and steps
count."""
