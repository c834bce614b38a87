"""Learning algorithms over a cohort. This file imports nothing: `cohort` and `registry` stay light.

algorithm, cohort, registry          the interface, what is trained together, a class by its name
on_policy, ppo, a2c                  from fresh rollouts; preparation, minibatch: what they learn from
off_policy, dqn, ddpg, td3, sac      from replay; so do modsac, redq, discrete_sac; experience, values: shared
h_term                               an addition to an actor's loss
on_policy_info, dqn_info, actor_critic_info    descriptions for the catalogue, without torch
sharing                              what several learners of a cohort share
trained_network                                networks with their optimizer
"""
