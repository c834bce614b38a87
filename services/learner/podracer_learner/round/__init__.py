"""A round of training: how it begins, what it does, what it tells and what it leaves."""
