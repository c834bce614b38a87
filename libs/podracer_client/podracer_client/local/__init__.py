"""Everything on one machine: the state folder, its services, and what `podracer run` and `podracer up` do with them."""
