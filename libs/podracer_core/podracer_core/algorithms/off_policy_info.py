"""The algorithms that learn from replay: the value of each discrete action (DQN and its variants), or
an actor and a critic (DDPG, TD3, SAC and what came of it)."""

from __future__ import annotations

from dataclasses import replace

from podracer_core.catalogue import (
    EXPLORATION_NOISE,
    H_TERM,
    LAYER_NORM,
    OFF_POLICY,
    QUICK_REPLAY,
    AlgorithmInfo,
    BoxSpace,
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

_DQN_HYPERPARAMETERS = (
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
    hyperparameters=(*_DQN_HYPERPARAMETERS, _HUBER),
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
    hyperparameters=(*_DQN_HYPERPARAMETERS, _HUBER),
)

_DUELING_DQN = AlgorithmInfo(
    name="dueling_dqn",
    title="Dueling DQN",
    paper=_DUELING_PAPER,
    summary="DQN whose network adds the value of a state and the advantages of the actions.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.dqn:DuelingDQN",
    hyperparameters=(*_DQN_HYPERPARAMETERS, _HUBER),
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
    hyperparameters=(*sought(_DQN_HYPERPARAMETERS, **QUICK_REPLAY), _HUBER),
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
        *_DQN_HYPERPARAMETERS,
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

_DDPG_PAPER = (
    "Lillicrap et al. 2016, Continuous Control with Deep Reinforcement Learning, arXiv:1509.02971"
)
_TD3_PAPER = "Fujimoto et al. 2018, Addressing Function Approximation Error, arXiv:1802.09477"
_TD3_CODE = "the authors' later code, github.com/sfujim/TD3"
_SAC_PAPER = "Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications, arXiv:1812.05905"
_MODSAC_PAPER = "Liu et al. 2021, ElegantRL-Podracer, arXiv:2112.05923 (ElegantRL's AgentModSAC)"
_REDQ_PAPER = "Chen et al. 2021, Randomized Ensembled Double Q-Learning, arXiv:2101.05982"
_DISCRETE_PAPER = (
    "Christodoulou 2019, Soft Actor-Critic for Discrete Action Settings, arXiv:1910.07207"
)
_FLASH_PAPER = "Kim et al. 2026, FlashSAC, arXiv:2604.04539"
_CROSSQ_CODE = (
    "Bhatt et al. 2024, CrossQ, arXiv:1902.05605; the authors' code, github.com/adityab/CrossQ"
)

_ACTOR_RATE = Hyperparameter(
    "actor_learning_rate_scale", "float", 1.0, "member",
    "the actor's rate is this times learning_rate",
    source=_SAC_PAPER, bounds=(1e-6, 1e3), search=SearchRange(0.3, 3.0, logarithmic=True),
)  # fmt: skip

_NOISE_SCALE = Hyperparameter(
    "noise_scale", "float", 0.1, "member",
    "standard deviation of the exploration noise; actions are in [-1, 1]",
    source=_TD3_PAPER, bounds=(0.0, 10.0), search=SearchRange(0.03, 0.5, logarithmic=True),
)  # fmt: skip

_POLICY_DELAY = Hyperparameter(
    "policy_delay", "int", 2, "cohort",
    "gradient steps of the critics for one of the actor",
    source=_TD3_PAPER, bounds=(1, 1000),
)  # fmt: skip

_INITIAL_TEMPERATURE = Hyperparameter(
    "initial_temperature", "float", 1.0, "member",
    "weight of the entropy at the start, or throughout if it is not learned",
    source=_SAC_PAPER, bounds=(1e-8, 1e3), search=SearchRange(0.1, 2.0, logarithmic=True),
)  # fmt: skip

_LEARN_TEMPERATURE = Hyperparameter(
    "learn_temperature", "bool", True, "cohort",
    "the weight of the entropy is learned so that the entropy stays near its target",
    source=_SAC_PAPER,
)  # fmt: skip

_SAC_HYPERPARAMETERS = (
    *OFF_POLICY,
    _ACTOR_RATE,
    *EXPLORATION_NOISE,
    _INITIAL_TEMPERATURE,
    Hyperparameter(
        "target_entropy_scale", "float", 1.0, "member",
        "target entropy is minus this times the number of action dimensions",
        source=_SAC_PAPER, bounds=(-10.0, 10.0), search=SearchRange(0.5, 1.5),
    ),
    _LEARN_TEMPERATURE,
)  # fmt: skip

_DDPG = AlgorithmInfo(
    name="ddpg",
    title="Deep Deterministic Policy Gradient",
    paper=_DDPG_PAPER,
    summary="A deterministic actor climbs the critic's value; noise explores.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.ddpg:DDPG",
    bounded_actions=True,
    hyperparameters=(
        *adapted(OFF_POLICY, _DDPG_PAPER, learning_rate=1e-3, hidden_sizes=(400, 300)),
        Hyperparameter(
            "actor_learning_rate_scale", "float", 0.1, "member",
            "the actor's rate is this times learning_rate",
            source=_DDPG_PAPER, bounds=(1e-6, 1e3), search=SearchRange(0.05, 1.0, logarithmic=True),
        ),
        _NOISE_SCALE,
        *EXPLORATION_NOISE,
        *LAYER_NORM,
        *H_TERM,
    ),
)  # fmt: skip

_TD3 = AlgorithmInfo(
    name="td3",
    title="Twin Delayed DDPG",
    paper=_TD3_PAPER,
    summary="DDPG with two critics of which the lower counts, a slower actor and noise on the "
            "target's action.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.td3:TD3",
    bounded_actions=True,
    automatic=True,
    hyperparameters=(
        *sought(
            adapted(
                OFF_POLICY, _TD3_CODE, learning_rate=3e-4, batch_size=256, hidden_sizes=(256, 256)
            ),
            **QUICK_REPLAY
        ),
        _ACTOR_RATE,
        _NOISE_SCALE,
        *EXPLORATION_NOISE,
        _POLICY_DELAY,
        Hyperparameter(
            "target_noise", "float", 0.2, "member",
            "standard deviation of the noise on the target's action",
            source=_TD3_PAPER, bounds=(0.0, 2.0), search=SearchRange(0.05, 0.4),
        ),
        Hyperparameter(
            "target_noise_clip", "float", 0.5, "member",
            "how large the noise on the target's action may be",
            source=_TD3_PAPER, bounds=(0.0, 2.0), search=SearchRange(0.2, 0.8),
        ),
        *LAYER_NORM,
        *H_TERM,
    ),
)  # fmt: skip

_SAC = AlgorithmInfo(
    name="sac",
    title="Soft Actor-Critic",
    paper=_SAC_PAPER,
    summary="A random actor is paid for its entropy, two critics of which the lower counts, a "
    "learned temperature.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.sac:SAC",
    bounded_actions=True,
    automatic=True,
    hyperparameters=(*sought(_SAC_HYPERPARAMETERS, **QUICK_REPLAY), *LAYER_NORM, *H_TERM),
)

_MODSAC = AlgorithmInfo(
    name="modsac",
    title="Modified SAC",
    paper=_MODSAC_PAPER,
    summary="SAC whose actor takes the fewer steps the larger the critics' running loss is.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.modsac:ModSAC",
    bounded_actions=True,
    hyperparameters=(
        *_SAC_HYPERPARAMETERS,
        *LAYER_NORM,
        Hyperparameter(
            "reliability_rate", "float", 0.005, "member",
            "how fast the running critic loss follows",
            source=_MODSAC_PAPER, bounds=(1e-6, 1.0),
            search=SearchRange(1e-3, 5e-2, logarithmic=True),
        ),
    ),
)  # fmt: skip

_REDQ = AlgorithmInfo(
    name="redq",
    title="Randomized Ensembled Double Q-Learning",
    paper=_REDQ_PAPER,
    summary="SAC with many critics, random few of which make each target, and many gradient steps "
            "a transition.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.redq:REDQ",
    bounded_actions=True,
    hyperparameters=(
        *adapted(_SAC_HYPERPARAMETERS, _REDQ_PAPER, updates_per_step=20.0),
        *LAYER_NORM,
        Hyperparameter(
            "ensemble_size", "int", 10, "network",
            "critics of each member",
            source=_REDQ_PAPER, bounds=(1, 64),
        ),
        Hyperparameter(
            "subset_size", "int", 2, "cohort",
            "critics that make one target, drawn anew each time; at most ensemble_size",
            source=_REDQ_PAPER, bounds=(1, 64),
        ),
    ),
)  # fmt: skip

_CROSSQ = AlgorithmInfo(
    name="crossq",
    title="CrossQ",
    paper=_CROSSQ_CODE,
    summary="SAC with batch normalization in place of target networks, and wide critics.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.crossq:CrossQ",
    bounded_actions=True,
    hyperparameters=(
        *adapted(
            tuple(knob for knob in _SAC_HYPERPARAMETERS if knob.name != "target_rate"),
            _CROSSQ_CODE,
            learning_rate=1e-3,
            hidden_sizes=(2048, 2048),
            learning_starts=5000,
        ),
        replace(_POLICY_DELAY, default=3, source=_CROSSQ_CODE),
        Hyperparameter(
            "actor_hidden_sizes", "sizes", (256, 256), "network",
            "width of every hidden layer of the actor; hidden_sizes are the critics'",
            source=_CROSSQ_CODE, bounds=(1, 16384),
        ),
    ),
)  # fmt: skip

_DISCRETE_SAC = AlgorithmInfo(
    name="discrete_sac",
    title="Discrete Soft Actor-Critic",
    paper=_DISCRETE_PAPER,
    summary="SAC that sums over all actions instead of drawing one.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="podracer_core.algorithms.discrete_sac:DiscreteSAC",
    automatic=True,
    hyperparameters=(
        *sought(
            adapted(
                OFF_POLICY,
                _OURS,
                learning_rate=2e-3,
                target_rate=0.05,
                batch_size=128,
                updates_per_step=0.5,
                hidden_sizes=(128, 128),
            ),
            **QUICK_REPLAY,
        ),
        Hyperparameter(
            "actor_learning_rate_scale", "float", 0.15, "member",
            "the actor's rate is this times learning_rate",
            source=_OURS, bounds=(1e-6, 1e3), search=SearchRange(0.05, 0.5, logarithmic=True),
        ),
        _INITIAL_TEMPERATURE,
        Hyperparameter(
            "target_entropy_scale", "float", 0.5, "member",
            "target entropy is this times log n; 0.98 in the paper",
            source=_OURS, bounds=(0.0, 1.0), search=SearchRange(0.2, 0.98),
        ),
        _LEARN_TEMPERATURE,
        *LAYER_NORM,
    ),
)  # fmt: skip

_FLASH_SAC = AlgorithmInfo(
    name="flash_sac",
    title="FlashSAC",
    paper=_FLASH_PAPER,
    summary="SAC with normalized residual networks and distributional critics: the most return for "
            "a given experience.",
    on_policy=False,
    action_spaces=(BoxSpace,),
    implementation="podracer_core.algorithms.flash_sac:FlashSAC",
    bounded_actions=True,
    hyperparameters=(
        *adapted(
            OFF_POLICY, _FLASH_PAPER, target_rate=0.01, batch_size=512, learning_starts=10_000
        ),
        *adapted(EXPLORATION_NOISE, _FLASH_PAPER, exploration="repeated", exploration_period=16),
        replace(_INITIAL_TEMPERATURE, default=0.01, source=_FLASH_PAPER, search=None),
        Hyperparameter(
            "target_std", "float", 0.15, "member",
            "the target entropy is that of a Gaussian of this standard deviation",
            source=_FLASH_PAPER, bounds=(1e-4, 10.0),
            search=SearchRange(0.05, 0.4, logarithmic=True),
        ),
        _LEARN_TEMPERATURE,
        Hyperparameter(
            "schedule_updates", "int", 1_000_000, "cohort",
            "gradient steps over which the learning rate falls to half of it",
            source=_FLASH_PAPER, bounds=(1, 1 << 40),
        ),
        Hyperparameter(
            "value_bins", "int", 101, "network",
            "values of the grid that a critic's distribution is over",
            source=_FLASH_PAPER, bounds=(2, 4096),
        ),
        Hyperparameter(
            "value_limit", "float", 5.0, "cohort",
            "the grid goes from minus this to this; rewards are divided so that returns fit",
            source=_FLASH_PAPER, bounds=(1e-3, 1e6),
        ),
    ),
)  # fmt: skip

BUILT_IN = (
    *(_DQN, _DOUBLE_DQN, _DUELING_DQN, _D3QN, _QR_DQN),
    *(_DDPG, _TD3, _SAC, _MODSAC, _REDQ, _CROSSQ, _FLASH_SAC, _DISCRETE_SAC),
)
