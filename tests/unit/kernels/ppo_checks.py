"""PPO's kernels against autograd and against the eager form: run by test_kernels.py in a process of
its own, for Triton asks only once whether it interprets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.algorithms import PPO, CohortConfig, MemberConfig, RolloutRows, algorithm_class
from podracer_core.kernels import WidePPOKernels, acts_of, choices_of, sums_over_time

INPUTS, ROWS, SIZE = 5, 70, 50  # 70 and 50 are no multiples of a block of 32
SPACES = {
    "categorical": gymnasium.spaces.Discrete(3),
    "several": gymnasium.spaces.MultiDiscrete([2, 4]),
    "gaussian": gymnasium.spaces.Box(-1, 1, (3,), np.float32),
}
NETWORKS = [((8,), "tanh"), ((20, 16), "relu"), ((8, 24, 16), "elu")]
Make = Callable[..., PPO]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(
        space: gymnasium.Space[Any],
        members: int,
        hidden: tuple[int, ...],
        activation: str,
        kernels: bool,
        **own: float,
    ) -> PPO:
        monkeypatch.setenv("TRITON_INTERPRET", str(int(kernels)))
        shared = {
            "hidden_sizes": hidden,
            "activation": activation,
            "epochs": 1,
            "minibatch_size": SIZE,
        }
        cohort = CohortConfig(
            "ppo", tuple(MemberConfig(str(m), m, own) for m in range(members)), shared
        )
        box = gymnasium.spaces.Box(-1, 1, (INPUTS,), np.float32)
        algorithm = algorithm_class("ppo")(cohort, box, space, "cpu")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert isinstance(algorithm, PPO)
        assert (algorithm._kernels is not None) == kernels
        assert isinstance(algorithm._kernels, WidePPOKernels) == (
            kernels and (hidden, activation) in WIDE
        )
        noise = torch.randn(
            algorithm._networks.member_parameters.shape, generator=torch.Generator().manual_seed(1)
        )
        algorithm._networks.member_parameters.add_(0.1 * noise)
        return algorithm

    return make


def rows_of(algorithm: PPO, space: gymnasium.Space[Any], *, masked: bool) -> RolloutRows:
    members, random = algorithm.members, torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(members, ROWS, *shape, generator=random)

    head, sizes = (
        algorithm._networks.head,
        getattr(algorithm._networks.head, "sizes", [algorithm._networks.head.output_size]),
    )
    if isinstance(space, gymnasium.spaces.Box):
        action, mask = draw(*space.shape), None
    else:
        choices = [torch.randint(0, size, (members, ROWS), generator=random) for size in sizes]
        action = torch.stack(choices, -1).float()
        mask = draw(head.output_size) < 0.8
        for choice, first in zip(choices, np.cumsum([0, *sizes]), strict=False):
            mask.scatter_(2, choice.unsqueeze(2) + int(first), True)
    valid = draw() < 1.5
    numbers = [draw() - 1, draw(), draw(), draw(), torch.where(valid, draw().abs(), 0.0)]
    return RolloutRows(head, draw(INPUTS), action, mask if masked else None, numbers, valid)


def reference(algorithm: PPO, rows: RolloutRows, masked: bool) -> Tensor:
    """The gradient of the first minibatch in the order of the rows, by autograd in float64: [M,
    P]."""
    (batch, *_) = rows.minibatches(SIZE)
    own = {k: v.double() for k, v in algorithm._hyperparameters.items()}
    networks = algorithm._networks
    flat = networks.parameters.flat.double().requires_grad_()
    sizes, start, layers = networks.both.architecture.dense_sizes, 0, []
    for left, right in pairwise(sizes):
        middle, end = start + left * right, start + left * right + right
        layers.append(
            (flat[:, start:middle].view(-1, left, right), flat[:, middle:end].unsqueeze(1))
        )
        start = end
    hidden = batch.observation.double().repeat_interleave(2, 0)
    function = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}
    for weight, bias in layers[:-1]:
        hidden = function[networks.both.architecture.activation](hidden @ weight + bias)
    output = hidden @ layers[-1][0] + layers[-1][1]
    policy, value = output[0::2], output[1::2, :, 0]
    if masked:
        policy = policy.masked_fill(~batch.action_mask, -1e8)  # type: ignore[operator]
    choices = getattr(algorithm._networks.head, "sizes", [algorithm._networks.head.output_size])
    if algorithm._networks.head.settings:
        normal = torch.distributions.Normal(policy, flat[0::2, start:].exp().unsqueeze(1))
        log_prob, entropy = normal.log_prob(batch.action).sum(-1), normal.entropy().sum(-1)
    else:
        parts = [torch.distributions.Categorical(logits=part) for part in policy.split(choices, -1)]
        actions = batch.action.view(*batch.weight.shape, -1).unbind(-1)
        log_prob = torch.stack(
            [part.log_prob(a) for part, a in zip(parts, actions, strict=True)]
        ).sum(0)
        entropy = torch.stack([part.entropy() for part in parts]).sum(0)
    clip, held = own["clip_range"][:, None], own["value_clip_range"][:, None]
    ratio = (log_prob - batch.log_prob).exp()
    surrogate = torch.min(
        ratio * batch.advantage, ratio.clamp(1 - clip, 1 + clip) * batch.advantage
    )
    error = (value - batch.target).square()
    limited = (batch.value + (value - batch.value).clamp(-held, held) - batch.target).square()
    error = torch.where(held > 0, torch.max(error, limited), error)
    loss = (
        -surrogate
        + own["value_coefficient"][:, None] * 0.5 * error
        - own["entropy_coefficient"][:, None] * entropy
    )
    weight = batch.weight.double()
    (loss * weight / weight.sum(1, keepdim=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert flat.grad is not None
    return flat.grad.view(algorithm.members, -1)


FORMS = [("categorical", False), ("categorical", True), ("several", True), ("gaussian", False)]
WIDE = [((70, 8, 8, 8), "tanh")]  # and deep: layer by layer
CASES = [
    (*form, *network, members)
    for form in FORMS
    for network in NETWORKS + WIDE
    for members in (1, 3)
]
QUICK = {("categorical", "tanh", 3), ("several", "relu", 1), ("gaussian", "elu", 3)}


@pytest.mark.parametrize(
    ("name", "masked", "hidden", "activation", "members"),
    [
        pytest.param(*case, marks=[] if (case[0], *case[3:]) in QUICK else pytest.mark.thorough)
        for case in CASES
    ],
)
def test_gradients_are_autograds_and_steps_those_of_the_eager_form(
    make, name, masked, hidden, activation, members
):
    own = {
        "value_clip_range": 0.2,
        "desired_kl": 0.01,
        "entropy_coefficient": 0.02,
        "target_kl": 0.5,
    }
    kernels, eager = (
        make(SPACES[name], members, hidden, activation, here, **(own if members > 1 else {}))
        for here in (True, False)
    )
    rows = rows_of(kernels, SPACES[name], masked=masked)
    order = torch.arange(ROWS).repeat(members, 1)
    expected = reference(kernels, rows, masked)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(rows), "count", SIZE)
        single = make(
            SPACES[name], members, hidden, activation, True, **(own if members > 1 else {})
        )
        patched.setattr(single, "_orders", lambda _: [order])
        with torch.no_grad():
            single._kernel_steps(rows, single._hyperparameters["learning_rate"])
    found = single._optimizer.gradient.double()
    assert (found - expected).norm() <= 1e-5 * expected.norm()

    if name == "categorical" and members > 1:  # one diverges
        for algorithm in (kernels, eager):
            algorithm._networks.member_parameters[1, 7] = torch.nan
    with torch.no_grad():
        sums = kernels._kernel_steps(rows, rate := kernels._hyperparameters["learning_rate"])
        expected_sums, learning = torch.zeros(7, members), eager.active.clone()
        for minibatch in eager._minibatches(rows):
            eager._step(minibatch, rate, learning, expected_sums)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-4, atol=1e-5)
    for what in ("parameters", "first_moment", "second_moment", "step_count"):
        ours, theirs = (getattr(each._optimizer, what) for each in (kernels, eager))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(kernels._rate_factor, eager._rate_factor)
    assert torch.equal(kernels.active, eager.active)


class OwnLoss(PPO):
    """It may have overridden a loss."""


@pytest.mark.parametrize(
    ("space", "hidden", "kind"),
    [
        (gymnasium.spaces.Discrete(65), (8,), PPO),
        (gymnasium.spaces.MultiBinary(3), (8,), PPO),
        (SPACES["categorical"], (8,), OwnLoss),
    ],
)
def test_what_stays_eager(space, hidden, kind):
    cohort = CohortConfig("ppo", (MemberConfig("0", 0),), {"hidden_sizes": hidden})
    box = gymnasium.spaces.Box(-1, 1, (INPUTS,), np.float32)
    assert kind(cohort, box, space, "cpu")._kernels is None
    assert (
        PPO(
            replace(cohort, shared={"hidden_sizes": (8,)}), box, SPACES["categorical"], "cpu"
        )._kernels
        is not None
    )


@pytest.mark.parametrize(("hidden", "activation"), NETWORKS)
@pytest.mark.parametrize("name", SPACES)
def test_an_action_and_its_probability(make, name, hidden, activation):
    """Of several members, with masks, limits of observations, and rows that no block divides."""
    algorithm = make(SPACES[name], 2, hidden, activation, kernels=True)
    random = torch.Generator().manual_seed(5)
    actor, head = algorithm.actor, algorithm._networks.head
    actor.mean.copy_(torch.randn(actor.mean.shape, generator=random))
    actor.scale.uniform_(0.1, 2.0, generator=random)
    observation = 5 * torch.randn(2, ROWS, INPUTS, generator=random)
    noise = torch.randn(2, ROWS, head.noise_size, generator=random)
    mask = None
    if name != "gaussian":
        mask = torch.rand(2, ROWS, head.output_size, generator=random) < 0.7
        for first in np.cumsum([0, *choices_of(head)])[:-1]:
            mask[..., int(first)] = True
    expected = actor.act(observation, noise, mask)
    found = torch.empty_like(expected[0]), torch.empty_like(expected[1])
    act = acts_of(actor)
    assert act.func.__name__ == "_act_by_kernel"
    act(observation, noise, mask, *found)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found[0].dtype == head.action_dtype

    observation[0, 3] = torch.nan  # the member has diverged: any action, but one that there is
    act(observation, noise, mask, *found)
    assert found[1][0, 3].isnan()
    if name == "categorical":
        assert 0 <= found[0][0, 3] < head.output_size


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_over_time(reverse):
    random = torch.Generator().manual_seed(5)
    terms, decay = torch.randn(7, 3, 50, generator=random), torch.rand(7, 3, 50, generator=random)
    start = torch.randn(3, 50, generator=random)
    expected = sums_over_time(terms, decay, start, reverse=reverse)
    found = torch.ops.podracer.sums_over_time(
        terms, decay.transpose(1, 2).contiguous().transpose(1, 2), start, reverse
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
