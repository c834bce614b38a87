"""Evaluations and inspections, at an evaluator or here."""
