"""A hovering drone as an environment for Podracer, in torch."""
