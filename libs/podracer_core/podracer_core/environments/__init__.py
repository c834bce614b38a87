"""Batched environments: the protocol, the built-ins on torch, and any Gymnasium environment through processes.

This file imports nothing: the children of `preprocess` start through it and must stay small.
"""
