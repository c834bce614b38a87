"""Jobs that are known to work, or expected to.

Each has a job file, NAME.yaml, and a card, NAME.json: the result, cost and curve of a run.

entries     reads both
"""
