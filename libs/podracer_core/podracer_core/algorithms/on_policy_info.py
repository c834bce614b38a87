"""The algorithms that learn from what their present policy did: PPO and A2C."""

from __future__ import annotations

from dataclasses import replace

from podracer_core.catalogue import (
    H_TERM,
    SCHEDULE,
    AlgorithmInfo,
    BoxSpace,
    DiscreteSpace,
    Fixed,
    Hyperparameter,
    MultiBinarySpace,
    MultiDiscreteSpace,
    SearchRange,
    adapted,
)

_PPO_PAPER = "Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347"
_A2C_PAPER = (
    "Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, arXiv:1602.01783"
)
_DETAILS = "Huang et al. 2022, The 37 Implementation Details of PPO"
_DIPS = "ours: with 32, agents forget what they could, see docs/algorithms/ppo.md"
_WEIGHT = (
    "half the squared error, once: as Stable-Baselines3 weighs it; measured in "
    "docs/benchmarks/ppo_details.md"
)
_REWARDS = "as VecNormalize of Stable-Baselines3 does; measured in docs/benchmarks/ppo_details.md"
_RSL_RL = "Schwarke et al. 2025, RSL-RL, arXiv:2509.10771"
_STUDY = "Andrychowicz et al. 2021, What Matters In On-Policy RL?, arXiv:2006.05990"

_GAE_LAMBDA = Hyperparameter(
    "gae_lambda", "float", 0.95, "member",
    "0 trusts the critic, 1 the observed return",
    source="Schulman et al. 2016, arXiv:1506.02438, eq. 16", bounds=(0.0, 1.0),
    search=SearchRange(0.9, 0.98, logarithmic=True), near_one=True,
)  # fmt: skip

_SHARED = (
    Hyperparameter(
        "learning_rate", "float", 1e-3, "member",
        "step size of Adam",
        source=_STUDY, bounds=(1e-7, 1.0), search=SearchRange(3e-4, 3e-3, logarithmic=True),
    ),
    Hyperparameter(
        "gamma", "float", 0.99, "member",
        "discount of a reward one step later",
        source=_PPO_PAPER, bounds=(0.0, 1.0), search=SearchRange(0.97, 0.999, logarithmic=True),
        near_one=True,
    ),
    Hyperparameter(
        "entropy_coefficient", "float", 0.0, "member",
        "weight of the entropy bonus",
        source=f"{_PPO_PAPER}, eq. 9", bounds=(0.0, 10.0), search=SearchRange(0.0, 1e-2),
    ),
    Hyperparameter(
        "value_coefficient", "float", 1.0, "member",
        "weight of the critic's loss, which is half of the squared error",
        source=_WEIGHT, bounds=(0.0, 100.0),
    ),
    Hyperparameter(
        "max_gradient_norm", "float", 0.5, "member",
        "each member's gradient is scaled down to this norm",
        source=_DETAILS, bounds=(1e-6, 1e6),
    ),
    Hyperparameter(
        "horizon", "int", 64, "cohort",
        "steps that every environment takes between two updates",
        source=_DIPS, bounds=(1, 65536),
    ),
    Hyperparameter(
        "hidden_sizes", "sizes", (64, 64), "network",
        "width of every hidden layer of actor and critic",
        source=_PPO_PAPER, bounds=(1, 16384),
    ),
    Hyperparameter(
        "activation", "choice", "tanh", "network",
        "what follows a hidden layer",
        source=_STUDY, choices=("tanh", "relu", "elu"),
    ),
    Hyperparameter(
        "normalize_observations", "bool", True, "network",
        "by a running mean and variance, clipped to ±10",
        source=_DETAILS,
    ),
    Hyperparameter(
        "normalize_values", "bool", True, "network",
        "the critic learns returns of mean 0 and deviation 1",
        source="van Hasselt et al. 2016, arXiv:1602.07714 (Pop-Art)",
    ),
    Hyperparameter(
        "normalize_rewards", "bool", True, "network",
        "by the running deviation of the discounted returns so far, clipped to ±10",
        source=_REWARDS, former=False,
    ),
    Hyperparameter(
        "initial_log_std", "float", 0.0, "network",
        "logarithm of the first standard deviation, in units in which a bounded action is in [-1, "
        "1]",
        source=_STUDY, bounds=(-10.0, 3.0),
    ),
    Hyperparameter(
        "normalize_advantages", "bool", True, "cohort",
        "to mean 0 and deviation 1 over a member's rollout",
        source=_DETAILS,
    ),
    *SCHEDULE,
)  # fmt: skip

_PPO = AlgorithmInfo(
    name="ppo",
    title="Proximal Policy Optimization",
    paper=_PPO_PAPER,
    summary="Several passes over each rollout, held near the old policy by a clipped ratio.",
    on_policy=True,
    action_spaces=(BoxSpace, DiscreteSpace, MultiDiscreteSpace, MultiBinarySpace),
    implementation="podracer_core.algorithms.ppo:PPO",
    automatic=True,
    hyperparameters=(
        *_SHARED,
        _GAE_LAMBDA,
        Hyperparameter(
            "clip_range", "float", 0.2, "member",
            "how far the probability ratio may leave 1",
            source=f"{_PPO_PAPER}, eq. 7", bounds=(1e-3, 10.0), search=SearchRange(0.1, 0.3),
        ),
        Hyperparameter(
            "value_clip_range", "float", 0.0, "member",
            "how far a value may move from its old one in normalized units; 0 never clips",
            source=_DETAILS, bounds=(0.0, 100.0),
        ),
        Hyperparameter(
            "target_kl", "float", 0.0, "member",
            "a member stops its update when its policy has moved 1.5 times this far; 0 never stops",
            source=_DETAILS, bounds=(0.0, 10.0),
        ),
        Hyperparameter(
            "desired_kl", "float", 0.0, "member",
            "the learning rate falls where the policy moves twice this far, and rises under half "
            "of it; 0: neither",
            source=_RSL_RL, bounds=(0.0, 10.0),
        ),
        Hyperparameter(
            "minibatch_size", "int", 0, "cohort",
            "transitions of one member in a minibatch; 0: a quarter of its rollout, on a CPU 2,048 "
            "at most",
            source=f"the quarter: {_DETAILS}; the 2,048: ours", bounds=(0, 1 << 24),
        ),
        Hyperparameter(
            "epochs", "int", 4, "cohort",
            "passes over the rollout in an update",
            source=_PPO_PAPER, bounds=(1, 1000), search=Fixed(8),
        ),
        *H_TERM,
    ),
)  # fmt: skip

_A2C = AlgorithmInfo(
    name="a2c",
    title="Advantage Actor-Critic",
    paper=_A2C_PAPER,
    summary="One gradient step on each rollout; the synchronous form of A3C.",
    on_policy=True,
    action_spaces=(BoxSpace, DiscreteSpace),
    implementation="podracer_core.algorithms.a2c:A2C",
    hyperparameters=(
        *adapted(
            _SHARED,
            _A2C_PAPER,
            learning_rate=7e-4,
            gamma=0.99,
            entropy_coefficient=0.01,
            value_coefficient=0.5,
            horizon=8,
            normalize_rewards=False,
            normalize_advantages=False,
        ),
        replace(
            _GAE_LAMBDA,
            default=1.0,
            source=_A2C_PAPER,
            search=SearchRange(0.9, 1.0, logarithmic=True),
        ),
    ),
)

BUILT_IN = (_PPO, _A2C)
