"""Learning algorithms over a cohort. This file imports nothing: `cohort` stays light.

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
