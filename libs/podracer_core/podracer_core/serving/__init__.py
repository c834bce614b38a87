"""Acting with trained policies for others: what a policy server computes.

policy       ServedPolicy: one version of a policy, or of several that act as one
batching     Batcher: requests that wait at the same time become one call of the network
"""

from podracer_core.serving.batching import Batcher, ServedPolicies
from podracer_core.serving.policy import ServedPolicy

__all__ = ["Batcher", "ServedPolicies", "ServedPolicy"]
