"""Several learners of the same agents: the lead's side and the follower's."""
