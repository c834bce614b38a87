"""The policy server: trained policies act for whoever asks.

server, service, config   the process, its rpc methods and settings
sources, loading          what it serves from the start; what comes by LoadPolicy
messages                  observations and actions, every value checked
"""
