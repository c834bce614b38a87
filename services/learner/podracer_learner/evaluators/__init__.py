"""Evaluations and inspections, at an evaluator or here.

remote_backend, policy_stream   evaluations beside training
evaluate, calls                 EVALUATE; INSPECT, and other single calls
"""
