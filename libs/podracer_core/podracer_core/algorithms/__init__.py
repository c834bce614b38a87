"""Learning algorithms over a cohort.

algorithm                            the interface and a class by its name; the agents that are
                                     trained together; what several learners share
on_policy, ppo, a2c                  from fresh rollouts; preparation: what they learn from
off_policy, dqn, ddpg, td3, sac      from replay; so do modsac, redq, qr_dqn, crossq, flash_sac,
                                     discrete_sac; experience: shared
values                               networks with their optimizer, and the error of action values
h_term                               an addition to an actor's loss
info                                 descriptions for the catalogue, without torch
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.algorithms import h_term, off_policy, ppo
    from podracer_core.algorithms.algorithm import (
        Algorithm, CohortConfig, MemberConfig, MemberState, Sharing, algorithm_class, perturb_actor,
    )
    from podracer_core.algorithms.dqn import DQN
    from podracer_core.algorithms.experience import Batch, Experience
    from podracer_core.algorithms.h_term import (
        HTerm, Windows, good_episodes, good_segments, k_step_loss, segment_loss,
    )
    from podracer_core.algorithms.off_policy import OffPolicy
    from podracer_core.algorithms.on_policy import OnPolicy, _architecture, scheduled_rate
    from podracer_core.algorithms.ppo import (
        PPO, adapted_rate, clipped_surrogate, clipped_value_error,
    )
    from podracer_core.algorithms.preparation import (
        Minibatch, Preparation, ReturnScale, RolloutRows, generalized_advantages,
        normalized_advantages,
    )
    from podracer_core.algorithms.qr_dqn import quantile_error
    from podracer_core.algorithms.sac import SAC, Temperature
    from podracer_core.algorithms.values import (
        EnsemblePass, TrainedNetwork, ValueBins, ensemble_outputs, squared_error,
    )
else:
    __all__, __getattr__ = exports(__name__)
