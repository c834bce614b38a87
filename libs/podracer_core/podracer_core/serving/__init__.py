"""Acting with trained policies for others: what a policy server computes.

policy       ServedPolicy: one version of a policy, or of several that act as one
policies     ServedPolicies: what is served, by name and version
batching     Batcher: requests that wait at the same time become one call of the network
"""

from podracer_core.serving.batching import Batcher
from podracer_core.serving.policies import ServedPolicies
from podracer_core.serving.policy import ServedPolicy

__all__ = ["Batcher", "ServedPolicies", "ServedPolicy"]
