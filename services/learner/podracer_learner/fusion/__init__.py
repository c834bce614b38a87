"""Several learners of the same agents.

lead, follower_registry   the lead's side: the fusion, the admission of followers
follower                  the follower's side: a FOLLOW lease
stream                    the Fuse stream between them
"""
