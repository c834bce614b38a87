"""Fusion: the parameters of several learners of one agent become one. Pure functions, to come with several learners."""
