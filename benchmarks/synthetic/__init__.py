"""Agents that need no training: their return is a known function of hyperparameters and of the
training they had."""
