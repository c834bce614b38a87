"""Several learners of the same agents.

lead, follower_registry   the lead's side: what it fuses, where followers come to it
follower                  the other side: a FOLLOW lease
stream                    the Fuse stream between them
"""
