"""The policy server: acts with trained policies on behalf of clients.

server, service   the process, its settings and rpc methods
batching, policy  all waiting calls as one batch; a stored policy that acts
sources           the policies that it serves from the start
messages          observations and actions, every value checked
"""
