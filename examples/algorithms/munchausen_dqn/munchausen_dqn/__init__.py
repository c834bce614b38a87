"""Munchausen DQN as an algorithm for Podracer. This file imports nothing: `catalogue` must stay
light."""
