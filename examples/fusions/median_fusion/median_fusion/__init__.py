"""The median of several learners as a fusion for Podracer."""
