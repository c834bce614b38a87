"""A maze as an environment for Podracer."""
