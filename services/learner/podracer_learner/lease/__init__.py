"""A lease of work.

control      the calls under it
held_lease   what keeps it, in a thread of its own
guard        what it protects: no write without it
"""
