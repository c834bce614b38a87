"""Continuous jobs: their generations, the contest that ends each, and what their aliases point at."""
