"""Fusion: combining the parameters of several learners of one agent into one. Pure functions, to come with several learners."""
