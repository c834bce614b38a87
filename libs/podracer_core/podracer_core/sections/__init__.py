"""Sections of a job that learning needs: fields, defaults and checks; no torch.

search       which algorithms with which hyperparameters
evolution    how agents compete
objective    when training ends, and how policies are evaluated
pod          the size of a cohort and the processes that train it
checks       gathers mistakes
"""
