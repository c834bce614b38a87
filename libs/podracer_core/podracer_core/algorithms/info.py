"""The descriptions of the algorithms: those that learn from what their present policy did (PPO and
A2C), and those that learn from replay, the value of each discrete action (DQN and its variants) or
an actor and a critic (DDPG, TD3, SAC and what came of it)."""

from __future__ import annotations

from dataclasses import replace

from podracer_core.catalogue import (
    EXPLORATION_NOISE,
    H_TERM,
    LAYER_NORM,
    OFF_POLICY,
    QUICK_REPLAY,
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
    sought,
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

_ON_POLICY = (
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
        *_ON_POLICY,
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
            _ON_POLICY,
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
    *(_PPO, _A2C),
    *(_DQN, _DOUBLE_DQN, _DUELING_DQN, _D3QN, _QR_DQN),
    *(_DDPG, _TD3, _SAC, _MODSAC, _REDQ, _CROSSQ, _FLASH_SAC, _DISCRETE_SAC),
)
