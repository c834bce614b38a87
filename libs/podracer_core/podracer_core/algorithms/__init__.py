"""Learning algorithms over a cohort.

algorithm, cohort                    the interface and a class by its name; the agents that are
                                     trained together
on_policy, ppo, a2c                  from fresh rollouts; preparation, minibatch: what they learn
                                     from
off_policy, dqn, ddpg, td3, sac      from replay; so do modsac, redq, qr_dqn, crossq, flash_sac,
                                     discrete_sac; experience: shared
values, categorical_values           networks with their optimizer, and the error of action values;
                                     as distributions
return_scale                         what PPO and FlashSAC divide rewards by
h_term                               an addition to an actor's loss
on_policy_info, dqn_info, actor_critic_info    descriptions for the catalogue, without torch
sharing                              what several learners of a cohort share
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.algorithms import h_term, off_policy, ppo
    from podracer_core.algorithms.algorithm import (
        Algorithm, MemberState, algorithm_class, perturb_actor,
    )
    from podracer_core.algorithms.categorical_values import ValueBins
    from podracer_core.algorithms.cohort import CohortConfig, MemberConfig
    from podracer_core.algorithms.dqn import DQN
    from podracer_core.algorithms.experience import Batch, Experience
    from podracer_core.algorithms.h_term import (
        HTerm, Windows, good_episodes, good_segments, k_step_loss, segment_loss,
    )
    from podracer_core.algorithms.minibatch import Minibatch, RolloutRows
    from podracer_core.algorithms.off_policy import OffPolicy
    from podracer_core.algorithms.on_policy import OnPolicy, _architecture, scheduled_rate
    from podracer_core.algorithms.ppo import (
        PPO, adapted_rate, clipped_surrogate, clipped_value_error,
    )
    from podracer_core.algorithms.preparation import (
        Preparation, generalized_advantages, normalized_advantages,
    )
    from podracer_core.algorithms.qr_dqn import quantile_error
    from podracer_core.algorithms.return_scale import ReturnScale
    from podracer_core.algorithms.sac import SAC, Temperature
    from podracer_core.algorithms.sharing import Sharing
    from podracer_core.algorithms.values import (
        EnsemblePass, TrainedNetwork, ensemble_outputs, squared_error,
    )
else:
    __all__, __getattr__ = exports(__name__)
