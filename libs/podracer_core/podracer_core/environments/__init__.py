"""Batched environments: one protocol, whatever steps them.

vec_environment                            the protocol: N environments as one, tensors on one
                                           device
torch_environment                          the frame of those written in torch; episode_starts:
                                           their first states
rsl_rl                                     simulators behind the interface of rsl_rl, such as mjlab
classic_control, point_chasing, mujoco     the built-in ones, each with an `*_info` beside it
processes                                  users' and Gymnasium's, in child processes
registry                                   a spec -> running environments
spaces, video                              Gymnasium's spaces, an MP4 of an episode

This file imports nothing: the children of `processes` start through it and must stay small.
"""
