"""Evaluations and inspections, by an evaluator or in this process.

remote_backend   evaluations beside training
works            EVALUATE and INSPECT, and their calls of an evaluator
"""
