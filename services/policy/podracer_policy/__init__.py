"""The policy server: acts with trained policies on behalf of clients.

server, service   the process, its settings and rpc methods
sources           the policies that it serves from the start
messages          observations and actions, every value checked
"""
