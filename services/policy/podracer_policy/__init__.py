"""The policy server: trained policies act for whoever asks.

server, service   the process, its settings and rpc methods
sources           what it serves from the start
messages          observations and actions, every value checked
"""
