"""Networks with a leading axis of members: what maps observations to actions and values.

stacked_network, stacked_mlp        the layers, all parameters in one tensor; stacked_residual:
                                    other bodies
actor                               what acts: of a cohort, with a critic, one alone
action_head, box_heads              what outputs mean: in general, for discrete actions, for a Box
normalizer                          running means and variances
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.networks import box_heads, stacked_mlp
    from podracer_core.networks.action_head import (
        ActionHead, BernoulliHead, CategoricalHead, MultiCategoricalHead, PolicyHead, ValueHead,
    )
    from podracer_core.networks.actor import ACTOR, CRITIC, Actor, ActorCritic, NetworkActor, Policy
    from podracer_core.networks.box_heads import (
        BoxHead, DeterministicHead, Exploration, ExplorationKind, GaussianHead, SmoothGaussianHead,
        SquashedGaussianHead, make_exploration, make_policy_head,
    )
    from podracer_core.networks.normalizer import ObservationStatistics, RunningNormalizer
    from podracer_core.networks.stacked_mlp import (
        MLPPass, StackedMLP, StackedParameters, is_wide, mlp_shapes, orthogonal,
    )
    from podracer_core.networks.stacked_network import (
        Architecture, Body, StackedNetwork, actor_inputs, image_shape, observation_size,
    )
    from podracer_core.networks.stacked_residual import BatchNorm, StackedResidual, norm_shapes
else:
    __all__, __getattr__ = exports(__name__)
