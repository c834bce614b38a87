"""Where the servers are, and how they are reached.

lookup                          finds a connection: given, in the environment, in a state folder, in a context
connection, contexts, cluster   what a connection is; servers by name; those of a cluster, by kubectl
stubs                           the gRPC stubs over it
"""
