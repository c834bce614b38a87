"""Evaluations and inspections, by an evaluator or in this process.

remote_backend, policy_stream   evaluations beside training
evaluate, calls                 EVALUATE; INSPECT, and other single calls
"""
