"""Names of other libraries, and what they are called here. docs/coming-from.md explains them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

_STACK = "stack frames with a wrapper: gymnasium.wrappers.FrameStackObservation"
_SCHEDULE = "learning_rate_schedule"

_COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "Stable-Baselines3": {
        "n_steps": "horizon", "batch_size": "minibatch_size", "n_epochs": "epochs",
        "policy_kwargs": "hidden_sizes", "ent_coef": "entropy_coefficient or learn_temperature",
        "vf_coef": "value_coefficient", "max_grad_norm": "max_gradient_norm",
        "net_arch": "hidden_sizes", "buffer_size": "replay_capacity", "tau": "target_rate",
        "target_update_interval": "target_interval", "train_freq": "updates_per_step",
        "gradient_steps": "updates_per_step", "exploration_final_eps": "final_exploration",
        "exploration_fraction": "exploration_steps", "action_noise": "noise_scale",
        "total_timesteps": "steps or objective.max_env_steps",
        "n_timesteps": "steps or objective.max_env_steps",
        "n_envs": "envs_per_member or pod.envs_per_member",
        "env_kwargs": "environment_arguments or environment.kwargs",
        "n_eval_episodes": "episodes or evaluation.episodes", "progress_bar": "progress",
        "verbose": "progress", "reward_threshold": "target or objective.target_return",
    },
    "RLlib": {
        "lr": "learning_rate", "lambda": "gae_lambda", "lambda_": "gae_lambda",
        "clip_param": "clip_range", "num_epochs": "epochs", "rollout_fragment_length": "horizon",
        "entropy_coeff": "entropy_coefficient", "vf_loss_coeff": "value_coefficient",
        "grad_clip": "max_gradient_norm", "fcnet_hiddens": "hidden_sizes", "env": "environment",
        "env_config": "environment_arguments or environment.kwargs", "num_workers": "pod.workers",
        "num_env_runners": "pod.workers", "num_learners": "pod.learners",
        "num_envs_per_env_runner": "envs_per_member or pod.envs_per_member", "num_gpus": "device",
    },
    "CleanRL": {
        "num_steps": "horizon", "update_epochs": "epochs", "clip_coef": "clip_range",
        "anneal_lr": _SCHEDULE, "policy_lr": "learning_rate", "q_lr": "learning_rate",
        "alpha": "initial_temperature", "env_id": "environment",
        "num_envs": "envs_per_member or pod.envs_per_member",
    },
    "Ray Tune": {
        "num_samples": "members or evolution.population",
        "param_space": "hyperparameters or search.space", "loguniform": "log_uniform",
        "randint": "integer_uniform", "grid_search": "choice",
        "time_budget_s": "seconds or objective.max_duration",
    },
    "ElegantRL": {
        "net_dims": "hidden_sizes", "horizon_len": "horizon",
        "repeat_times": "epochs or updates_per_step", "soft_update_tau": "target_rate",
        "break_step": "steps or objective.max_env_steps",
    },
    "AgileRL": {"pop_size": "members or evolution.population",
                "max_steps": "steps or objective.max_env_steps"},
    "other libraries": {
        "warm_start": "start", "resume": "start or warm_start", "init": "start or warm_start",
        "checkpoint": "start or warm_start", "discount": "gamma",
    },
}  # fmt: skip

_SENTENCES: Mapping[str, str] = {
    "use_sde": "there is no state-dependent exploration; `initial_log_std` sets the first noise of "
    "ppo and a2c",
    "frame_stack": _STACK,
    "policy": "the network follows from the spaces: convolutions for images, else layers of "
    "`hidden_sizes`",
    "train_batch_size": "a batch of one member is `horizon` times `envs_per_member`",
    "num_minibatches": "`minibatch_size` is a number of transitions, not of minibatches",
    "model": "`start` is a result or a path to go on from; the network follows from the spaces",
    **dict.fromkeys(
        ("lstm_hidden_size", "use_lstm", "recurrentppo"),
        f"there are no recurrent policies; {_STACK}",
    ),
    "maskableppo": "ppo and the value-based algorithms obey the environment's `action_masks()` or "
    "info['action_mask']",
    "her": "there is no hindsight replay: an off-policy algorithm such as sac learns from the "
    "reward alone",
    "tqc": "it is not here; crossq and redq are near for continuous actions, qr_dqn for discrete "
    "ones",
    "rainbow": "it is d3qn or qr_dqn with `prioritized: true` and `n_step: 3`",
    **dict.fromkeys(
        ("trpo", "appo", "impala"),
        "it is not here; ppo, with `target_kl` if you like, is the nearest",
    ),
    **dict.fromkeys(("bc", "cql", "iql", "marwil"), "nothing learns from recorded data here"),
    **dict.fromkeys(("mappo", "qmix", "maddpg"), "an environment has one agent here"),
}  # by lower-case name, with or without its separators


def counterpart(name: str, known: Collection[str]) -> str:
    """What another library's `name` is called here, in a sentence; empty for an unknown one. Of
    several counterparts those that are `known` where it was written are named, or whose section
    is."""
    for library, names in _COUNTERPARTS.items():
        if name.casefold() in names:
            here = names[name.casefold()].split(" or ")
            near = [each for each in here if set(each.split(".")) & set(known)]
            fitting = [each for each in here if each in known] or near or here
            told = (f"`{each}` of a job" if "." in each else f"`{each}`" for each in fitting)
            return f"`{name}` of {library} is {' or '.join(told)} here"
    return _SENTENCES.get(name.casefold(), _SENTENCES.get(_plain(name), ""))


def advice(name: str, known: Collection[str], *, most: int = 2) -> str:
    """A sentence on a `name` that is not `known`: its counterpart, the nearest known names, or all
    of them."""
    by_plain = {_plain(each): each for each in known}
    if _plain(name) in by_plain:
        return f"did you mean {by_plain[_plain(name)]}?"
    return counterpart(name, known) or did_you_mean(
        name, known, f"expected one of {', '.join(known)}", most=most
    )


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, most: int = 3) -> str:
    """A question with the names that are spelt alike, however they are capitalized; `otherwise` if
    none is."""
    by_spelling = {each.casefold(): each for each in sorted(known)}
    nearest = difflib.get_close_matches(name.casefold(), by_spelling, n=most, cutoff=0.5)
    return (
        f"did you mean {' or '.join(by_spelling[each] for each in nearest)}?"
        if nearest
        else otherwise
    )


def schedule_advice(value: object) -> str:
    """What to write for a schedule such as `lin_3e-4`, or a function of progress; empty for any
    other value."""
    if not callable(value) and not (
        isinstance(value, str) and value.startswith(("lin_", "linear_"))
    ):
        return ""
    return (
        f"; only the learning rate has a schedule: give its first value, and {_SCHEDULE}: "
        "linear or cosine"
    )


def _plain(name: str) -> str:
    """`RecurrentPPO` and `recurrent_ppo` alike."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())
