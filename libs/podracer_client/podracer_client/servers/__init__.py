"""Finding the servers and connecting to them.

lookup                          finds a connection: given, in the environment, in a state folder, in
                                a context
connection, cluster             a connection; servers by name; servers in a cluster, through kubectl
stubs                           the gRPC stubs of a connection
"""
