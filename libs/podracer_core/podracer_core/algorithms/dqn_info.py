"""The algorithms that learn the value of each discrete action: DQN and its variants."""

from __future__ import annotations

from dataclasses import replace

from podracer_core.catalogue import (
    LAYER_NORM,
    OFF_POLICY,
    QUICK_REPLAY,
    AlgorithmInfo,
    DiscreteSpace,
    Hyperparameter,
    SearchRange,
    adapted,
    sought,
)

_DQN_PAPER = (
    "Mnih et al. 2015, Human-level Control through Deep Reinforcement Learning, "
    "doi:10.1038/nature14236"
)
_DOUBLE_PAPER = (
    "van Hasselt et al. 2016, Deep Reinforcement Learning with Double Q-learning, arXiv:1509.06461"
)
_DUELING_PAPER = (
    "Wang et al. 2016, Dueling Network Architectures for Deep Reinforcement "
    "Learning, arXiv:1511.06581"
)
_QUANTILE_PAPER = "Dabney et al. 2018, Distributional RL with Quantile Regression, arXiv:1710.10044"
_OURS = "ours: small networks on vectors of observations"

_HYPERPARAMETERS = (
    *adapted(
        OFF_POLICY,
        _OURS,
        learning_rate=1e-3,
        target_rate=0.05,
        max_gradient_norm=10.0,
        batch_size=128,
        updates_per_step=0.5,
        hidden_sizes=(128, 128),
    ),
    Hyperparameter(
        "final_exploration", "float", 0.05, "member",
        "share of uniformly random actions at the end",
        source=_DQN_PAPER, bounds=(0.0, 1.0), search=SearchRange(0.01, 0.1),
    ),
    Hyperparameter(
        "exploration_steps", "int", 10_000, "cohort",
        "transitions of a member over which that share falls from 1",
        source=_OURS, bounds=(1, 1 << 40),
    ),
    Hyperparameter(
        "target_interval", "int", 1, "cohort",
        "gradient steps between two moves of the target network",
        source=_OURS, bounds=(1, 1 << 31),
    ),
    Hyperparameter(
        "ensemble_size", "int", 1, "network",
        "Q networks of each member; more than one: Maxmin Q-learning",
        source="Lan et al. 2020, Maxmin Q-learning, arXiv:2002.06487", bounds=(1, 64),
    ),
    *LAYER_NORM,
)  # fmt: skip

_HUBER = Hyperparameter(
    "huber_threshold", "float", 0.0, "member",
    "an error beyond it counts in proportion, not squared (the Huber loss); 0: every error counts "
    "squared",
    source=_DQN_PAPER, bounds=(0.0, 1e6),
)  # fmt: skip

_DQN = AlgorithmInfo(
    name="dqn",
    title="Deep Q-Network",
    paper=_DQN_PAPER,
    summary="Learns the value of each action from replayed transitions and a slow target network.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.dqn:DQN",
    hyperparameters=(*_HYPERPARAMETERS, _HUBER),
)

_DOUBLE_DQN = AlgorithmInfo(
    name="double_dqn",
    title="Double DQN",
    paper=_DOUBLE_PAPER,
    summary="DQN whose target is the value, to the target network, of the action that the learned "
    "one prefers.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.dqn:DoubleDQN",
    hyperparameters=(*_HYPERPARAMETERS, _HUBER),
)

_DUELING_DQN = AlgorithmInfo(
    name="dueling_dqn",
    title="Dueling DQN",
    paper=_DUELING_PAPER,
    summary="DQN whose network adds the value of a state and the advantages of the actions.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.dqn:DuelingDQN",
    hyperparameters=(*_HYPERPARAMETERS, _HUBER),
)

_D3QN = AlgorithmInfo(
    name="d3qn",
    title="Dueling Double DQN",
    paper=f"{_DUELING_PAPER}; {_DOUBLE_PAPER}",
    summary="Double DQN with a dueling network.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.dqn:D3QN",
    automatic=True,
    hyperparameters=(*sought(_HYPERPARAMETERS, **QUICK_REPLAY), _HUBER),
)

_QR_DQN = AlgorithmInfo(
    name="qr_dqn",
    title="Quantile Regression DQN",
    paper=_QUANTILE_PAPER,
    summary="DQN that learns the distribution of each action's return by its quantiles.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.qr_dqn:QRDQN",
    hyperparameters=(
        *_HYPERPARAMETERS,
        replace(
            _HUBER,
            default=1.0,
            bounds=(1e-3, 1e6),
            meaning="an error of a quantile beyond it counts in proportion, not squared: the "
                    "paper's κ",
            source=_QUANTILE_PAPER,
        ),
        Hyperparameter(
            "quantiles", "int", 50, "network",
            "equally likely returns that an action's distribution consists of; 200 in the paper",
            source=_OURS, bounds=(1, 1024),
        ),
    ),
)  # fmt: skip

BUILT_IN = (_DQN, _DOUBLE_DQN, _DUELING_DQN, _D3QN, _QR_DQN)
