"""The policy server: acts with trained policies on behalf of clients.

server     the process, its settings and rpc methods; observations and actions, every value checked
policies   stored policies that act, by name; all waiting calls as one batch
sources    the policies that it serves from the start
"""
