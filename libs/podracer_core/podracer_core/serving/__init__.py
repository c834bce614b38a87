"""Acting with trained policies: the computation of a policy server.

policy       ServedPolicy: one version of a policy or an ensemble
batching     Batcher: requests that wait at the same time share one call of the network
"""

from podracer_core.serving.batching import Batcher, ServedPolicies
from podracer_core.serving.policy import ServedPolicy

__all__ = ["Batcher", "ServedPolicies", "ServedPolicy"]
