"""Networks with a leading axis of members: what maps observations to actions and values."""

from podracer_core.networks.action_head import ActionHead, CategoricalHead, GaussianHead, make_action_head
from podracer_core.networks.actor import Actor, StochasticActor, observation_size
from podracer_core.networks.actor_critic import ACTOR, CRITIC, ActorCritic
from podracer_core.networks.initialization import orthogonal
from podracer_core.networks.normalizer import RunningNormalizer
from podracer_core.networks.policy import Policy
from podracer_core.networks.stacked_mlp import StackedMLP, mlp_shapes
from podracer_core.networks.stacked_parameters import StackedParameters

__all__ = [
    "ACTOR",
    "CRITIC",
    "ActionHead",
    "Actor",
    "ActorCritic",
    "CategoricalHead",
    "GaussianHead",
    "Policy",
    "RunningNormalizer",
    "StackedMLP",
    "StackedParameters",
    "StochasticActor",
    "make_action_head",
    "mlp_shapes",
    "observation_size",
    "orthogonal",
]
