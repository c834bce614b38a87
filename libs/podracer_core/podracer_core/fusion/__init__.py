"""Fusion: the parameters of several learners of one agent become one. Pure functions; they come with several learners."""
