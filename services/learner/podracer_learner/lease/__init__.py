"""A lease of work: the calls under it, what keeps it, and what it protects."""
