"""Networks with a leading axis of members: what maps observations to actions and values.

stacked_network, stacked_mlp, stacked_cnn, wide_mlp    the layers; stacked_residual,
                                                       stacked_normalized: other bodies;
                                                       stacked_parameters: all in one tensor
actor, actor_critic, policy                            what acts: of a cohort, one alone
action_head                                            what outputs mean, in general
gaussian_head, box_heads, discrete_heads, value_head   for each kind of action
normalizer                                             running means and variances
"""

from podracer_core.networks.action_head import ActionHead, PolicyHead
from podracer_core.networks.actor import Actor, NetworkActor
from podracer_core.networks.actor_critic import ACTOR, CRITIC, ActorCritic
from podracer_core.networks.box_heads import DeterministicHead, Exploration, SquashedGaussianHead
from podracer_core.networks.discrete_heads import (
    BernoulliHead,
    CategoricalHead,
    MultiCategoricalHead,
)
from podracer_core.networks.gaussian_head import GaussianHead, make_policy_head
from podracer_core.networks.normalizer import RunningNormalizer
from podracer_core.networks.policy import Policy
from podracer_core.networks.stacked_mlp import StackedMLP, mlp_shapes
from podracer_core.networks.stacked_network import (
    Architecture,
    StackedNetwork,
    image_shape,
    observation_size,
)
from podracer_core.networks.stacked_parameters import StackedParameters, orthogonal
from podracer_core.networks.value_head import ValueHead

__all__ = [
    "ACTOR",
    "CRITIC",
    "ActionHead",
    "Actor",
    "ActorCritic",
    "Architecture",
    "BernoulliHead",
    "CategoricalHead",
    "DeterministicHead",
    "Exploration",
    "GaussianHead",
    "MultiCategoricalHead",
    "NetworkActor",
    "Policy",
    "PolicyHead",
    "RunningNormalizer",
    "SquashedGaussianHead",
    "StackedMLP",
    "StackedNetwork",
    "StackedParameters",
    "ValueHead",
    "image_shape",
    "make_policy_head",
    "mlp_shapes",
    "observation_size",
    "orthogonal",
]
