"""What Podracer knows of Munchausen DQN without importing torch."""

from __future__ import annotations

from dataclasses import replace

from podracer_core.catalogue import (
    OFF_POLICY,
    AlgorithmInfo,
    DiscreteSpace,
    Hyperparameter,
    SearchRange,
    adapted,
)

_PAPER = "Vieillard et al. 2020, Munchausen Reinforcement Learning, arXiv:2007.14430"

# What the frame itself reads, with our defaults. The paper's target has one reward: with more, the
# actions in between would go without their bonus.
_FRAME = tuple(
    replace(knob, bounds=(1, 1)) if knob.name == "n_step" else knob
    for knob in adapted(
        OFF_POLICY, "ours", learning_rate=1e-3, batch_size=128, hidden_sizes=(64, 64)
    )
)

INFO = AlgorithmInfo(
    name="munchausen_dqn",
    title="Munchausen DQN",
    paper=_PAPER,
    summary="DQN with a softmax in its target and a bonus for what its own policy would do.",
    on_policy=False,
    action_spaces=(DiscreteSpace,),
    implementation="munchausen_dqn.algorithm:MunchausenDQN",
    hyperparameters=(
        *_FRAME,
        Hyperparameter(
            "munchausen_weight", "float", 0.9, "member",
            "weight of the scaled log-policy that is added to each reward; 0: soft DQN",
            source=_PAPER, bounds=(0.0, 1.0), search=SearchRange(0.5, 0.95),
        ),
        Hyperparameter(
            "policy_temperature", "float", 0.03, "member",
            "of the softmax over action values that is the policy",
            source=_PAPER, bounds=(1e-4, 100.0), search=SearchRange(0.01, 0.3, logarithmic=True),
        ),
        Hyperparameter(
            "exploration", "float", 0.05, "member",
            "share of uniformly random actions, once it learns",
            source="ours", bounds=(0.0, 1.0),
        ),
    ),
)  # fmt: skip
