"""Names of other libraries, and what they are called here. docs/coming-from.md explains them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

_STACK = "stack frames with a wrapper: gymnasium.wrappers.FrameStackObservation"
_SCHEDULE = "learning_rate_schedule"

_COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "Stable-Baselines3": {
        "n_steps": "horizon", "batch_size": "minibatch_size", "n_epochs": "epochs", "clip_range_vf": "value_clip_range",
        "ent_coef": "entropy_coefficient or learn_temperature", "vf_coef": "value_coefficient",
        "max_grad_norm": "max_gradient_norm", "policy_kwargs": "hidden_sizes", "net_arch": "hidden_sizes",
        "activation_fn": "activation", "normalize_advantage": "normalize_advantages", "buffer_size": "replay_capacity",
        "tau": "target_rate", "target_update_interval": "target_interval", "train_freq": "updates_per_step",
        "gradient_steps": "updates_per_step", "exploration_final_eps": "final_exploration",
        "exploration_fraction": "exploration_steps", "target_entropy": "target_entropy_scale",
        "log_std_init": "initial_log_std", "action_noise": "noise_scale", "target_policy_noise": "target_noise",
        "norm_obs": "normalize_observations", "norm_reward": "normalize_rewards",
        "normalize": "normalize_observations or normalize_rewards",
        "total_timesteps": "steps or objective.max_env_steps", "n_timesteps": "steps or objective.max_env_steps",
        "n_envs": "envs_per_member or pod.envs_per_member", "env_kwargs": "environment_arguments or environment.kwargs",
        "n_eval_episodes": "episodes or evaluation.episodes", "callback": "callbacks", "progress_bar": "progress",
        "verbose": "progress", "reward_threshold": "target or objective.target_return",
        "reset_num_timesteps": "start or warm_start",
    },
    "RLlib": {
        "lr": "learning_rate", "lambda": "gae_lambda", "lambda_": "gae_lambda", "clip_param": "clip_range",
        "vf_clip_param": "value_clip_range", "num_epochs": "epochs", "num_sgd_iter": "epochs",
        "sgd_minibatch_size": "minibatch_size", "rollout_fragment_length": "horizon",
        "entropy_coeff": "entropy_coefficient", "vf_loss_coeff": "value_coefficient", "grad_clip": "max_gradient_norm",
        "kl_target": "desired_kl", "fcnet_hiddens": "hidden_sizes", "fcnet_activation": "activation",
        "observation_filter": "normalize_observations", "training_intensity": "updates_per_step",
        "num_steps_sampled_before_learning_starts": "learning_starts", "env": "environment",
        "env_config": "environment_arguments or environment.kwargs", "num_workers": "pod.workers",
        "num_rollout_workers": "pod.workers", "num_env_runners": "pod.workers", "num_learners": "pod.learners",
        "num_envs_per_env_runner": "envs_per_member or pod.envs_per_member",
        "num_envs_per_worker": "envs_per_member or pod.envs_per_member", "num_gpus": "device",
        "evaluation_duration": "episodes or evaluation.episodes", "timesteps_total": "steps or objective.max_env_steps",
        "restore": "start or warm_start",
    },
    "CleanRL": {
        "num_steps": "horizon", "update_epochs": "epochs", "clip_coef": "clip_range",
        "norm_adv": "normalize_advantages", "anneal_lr": _SCHEDULE,
        "target_network_frequency": "target_interval", "train_frequency": "updates_per_step",
        "end_e": "final_exploration", "autotune": "learn_temperature", "alpha": "initial_temperature",
        "policy_lr": "learning_rate", "q_lr": "learning_rate", "policy_frequency": "policy_delay",
        "noise_clip": "target_noise_clip", "policy_noise": "target_noise", "env_id": "environment",
        "num_envs": "envs_per_member or pod.envs_per_member",
    },
    "Ray Tune": {
        "num_samples": "members or evolution.population", "param_space": "hyperparameters or search.space",
        "loguniform": "log_uniform", "randint": "integer_uniform", "lograndint": "integer_log_uniform",
        "grid_search": "choice", "max_concurrent_trials": "pod.count",
        "time_budget_s": "seconds or objective.max_duration",
    },
    "ElegantRL": {
        "net_dims": "hidden_sizes", "horizon_len": "horizon", "repeat_times": "epochs or updates_per_step",
        "soft_update_tau": "target_rate", "clip_grad_norm": "max_gradient_norm", "ratio_clip": "clip_range",
        "if_use_per": "prioritized", "break_step": "steps or objective.max_env_steps",
        "break_score": "target or objective.target_return", "max_step": "max_episode_steps", "random_seed": "seed",
        "gpu_id": "device", "env_args": "environment_arguments or environment.kwargs",
        "eval_times": "episodes or evaluation.episodes",
    },
    "other libraries": {
        "warm_start": "start", "resume": "start or warm_start", "init": "start or warm_start",
        "checkpoint": "start or warm_start",
        "start_from": "start or warm_start", "discount": "gamma", "gradient_clip": "max_gradient_norm",
        "n_layers": "hidden_sizes", "epsilon_clip": "clip_range", "linear": _SCHEDULE,
    },
}  # fmt: skip

_SENTENCES: Mapping[str, str] = {
    "use_sde": "there is no state-dependent exploration; `initial_log_std` sets the first noise of ppo and a2c",
    "frame_stack": _STACK,
    "env_wrapper": "make the wrapped environment in a function, and give that as the environment or entry_point",
    "policy": "the network follows from the spaces: convolutions for images, else layers of `hidden_sizes`",
    "tensorboard_log": "`podracer log` sends a job's curves to TensorBoard, W&B or MLflow; a result has its `history`",
    "replay_buffer_class": "there is no hindsight replay; `prioritized` chooses transitions by their error",
    "train_batch_size": "a batch of one member is `horizon` times `envs_per_member`",
    "train_batch_size_per_learner": "a batch of one member is `horizon` times `envs_per_member`",
    "num_minibatches": "`minibatch_size` is a number of transitions, not of minibatches",
    "model": "`start` is a result or a path to go on from; the network follows from the spaces",
    "ppo2": "it is `ppo` here",
    **dict.fromkeys(("lstm_hidden_size", "use_lstm", "recurrentppo"), f"there are no recurrent policies; {_STACK}"),
    "maskableppo": "ppo and the value-based algorithms obey the environment's `action_masks()` or info['action_mask']",
    "her": "there is no hindsight replay: an off-policy algorithm such as sac learns from the reward alone",
    "tqc": "it is not here; crossq and redq are near for continuous actions, qr_dqn for discrete ones",
    "rainbow": "it is d3qn or qr_dqn with `prioritized: true` and `n_step: 3`",
    **dict.fromkeys(("trpo", "appo", "impala"), "it is not here; ppo, with `target_kl` if you like, is the nearest"),
    **dict.fromkeys(("dreamer", "muzero"), "there are no world models here; sac and crossq need the fewest steps"),
    **dict.fromkeys(("bc", "cql", "iql", "marwil", "td3bc", "awac"), "nothing learns from recorded data here"),
    **dict.fromkeys(("mappo", "qmix", "maddpg", "multiagentppo"), "an environment has one agent here"),
}  # by lower-case name, with or without its separators


def counterpart(name: str, known: Collection[str]) -> str:
    """What another library's `name` is called here, in a sentence; empty for an unknown one. Of several counterparts
    those that are `known` where it was written are named, or whose section is."""
    for library, names in _COUNTERPARTS.items():
        if name.casefold() in names:
            here = names[name.casefold()].split(" or ")
            near = [each for each in here if set(each.split(".")) & set(known)]
            fitting = [each for each in here if each in known] or near or here
            told = (f"`{each}` of a job" if "." in each else f"`{each}`" for each in fitting)
            return f"`{name}` of {library} is {' or '.join(told)} here"
    return _SENTENCES.get(name.casefold(), _SENTENCES.get(_plain(name), ""))


def advice(name: str, known: Collection[str], *, most: int = 2) -> str:
    """A sentence on a `name` that is not `known`: its counterpart, the nearest known names, or all of them."""
    by_plain = {_plain(each): each for each in known}
    if _plain(name) in by_plain:
        return f"did you mean {by_plain[_plain(name)]}?"
    nearest = difflib.get_close_matches(name, known, n=most, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"expected one of {', '.join(known)}"
    return counterpart(name, known) or hint


def schedule_advice(value: object) -> str:
    """What to write for a schedule such as `lin_3e-4`, or a function of progress; empty for any other value."""
    if not callable(value) and not (isinstance(value, str) and value.startswith(("lin_", "linear_"))):
        return ""
    return f"; only the learning rate has a schedule: give its first value, and {_SCHEDULE}: linear or cosine"


def _plain(name: str) -> str:
    """`RecurrentPPO` and `recurrent_ppo` alike."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())
