"""The H-term (Hamiltonian add-on) of an actor's loss, in two forms: docs/algorithms/h_term.md has
the equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from podracer_core.buffers import Pieces, Rollout, Trajectories
from podracer_core.errors import InvalidInput
from podracer_core.networks import (
    DeterministicHead,
    NetworkActor,
    SquashedGaussianHead,
    StackedNetwork,
)
from podracer_core.random_numbers import derive_key, hamiltonian_keys, random_bits

LEAST_TRANSITIONS = 4096
"""A member that has stored fewer has no H-term yet."""

SEGMENT_STEPS = 16
_DROPPED_PART = 8  # of the episodes the lowest eighth
_LOWEST, _HIGHEST = -16.0, 2.0  # of log-probabilities
_LEAST_NOISE = 1e-3  # of a deterministic actor: without any it would have no density


@dataclass(frozen=True, slots=True)
class Windows:
    """B windows of K steps of every member, the newest step first; K is 1 for segments.

    observation  [M, B * K, *obs]     raw
    action       [M, B * K, *action]
    action_mask  [M, B * K, n]        None where the environment has no masks
    gain         [M, B, K]            G, or the normalized reward; 0 for steps before the episode's
                                      start
    weight       [M]                  lambda, 0 where the member has nothing to draw from
    """

    observation: Tensor
    action: Tensor
    action_mask: Tensor | None
    gain: Tensor
    weight: Tensor


def segment_loss(log_prob: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
    """-lambda * mean(exp(clip(log pi, -16, 2)) * G): log_prob, gain [M, B], weight [M] -> [M]."""
    _check(log_prob, gain, weight, 2)
    known = torch.where(weight.view(-1, 1) > 0, log_prob, 0.0)
    return -weight * (known.clamp(_LOWEST, _HIGHEST).exp() * gain).mean(1)


def k_step_loss(log_prob: Tensor, gain: Tensor, discount: Tensor, weight: Tensor) -> Tensor:
    """-lambda * mean(sum_k clip(h[k], -16, 2) * gain[k] * discount^k), h[k] = log_prob[0] + … +
    log_prob[k].

    log_prob, gain [M, B, K], discount, weight [M] -> [M].
    """
    _check(log_prob, gain, weight, 3)
    known = torch.where(weight.view(-1, 1, 1) > 0, log_prob, 0.0)
    factor = discount.view(-1, 1, 1) ** torch.arange(log_prob.shape[2], device=log_prob.device)
    return -weight * (known.cumsum(2).clamp(_LOWEST, _HIGHEST) * gain * factor).sum(2).mean(1)


def good_segments(pieces: Pieces) -> tuple[Tensor, Tensor]:
    """The segments whose return is above the mean of the member's, and G: bool [L, M, E], [L, M,
    E]."""
    closing = pieces.closing
    mean = torch.where(closing, pieces.total, 0.0).sum((0, 2)) / closing.sum((0, 2)).clamp(min=1)
    kept = pieces.within & (pieces.total > mean.view(1, -1, 1))
    return kept, _normalized(pieces.total, kept)


def good_episodes(pieces: Pieces) -> tuple[Tensor, Tensor]:
    """All but the lowest-return eighth of the member's whole episodes, and the normalized rewards
    of their steps.

    Of n episodes floor(n / 8) are dropped, of equal ones those that ended first. bool [L, M, E],
    [L, M, E]."""
    length, members, num_envs = pieces.total.shape
    closing = pieces.closing.transpose(0, 1).flatten(1)
    total = torch.where(closing, pieces.total.transpose(0, 1).flatten(1), torch.inf)
    dropped = closing.sum(1, keepdim=True).div(_DROPPED_PART, rounding_mode="floor")
    order = total.argsort(dim=1, stable=True)
    above = torch.arange(order.shape[1], device=order.device) >= dropped
    good = closing & torch.zeros_like(closing).scatter_(1, order, above)
    good = good.view(members, length, num_envs).transpose(0, 1)
    kept = pieces.within & good.gather(0, pieces.last)
    return kept, _normalized(pieces.reward, kept)


class HTerm:
    """Keeps the recent experience of M members and draws from it what the H-term looks at."""

    def __init__(
        self, form: str, steps: int, hyperparameters: Mapping[str, Tensor], seeds: Tensor
    ) -> None:
        """form: "segment" or "k_step"; steps: K of the latter. hyperparameters, seeds: the
        algorithm's own tensors [M], which may change."""
        if form not in ("segment", "k_step"):
            raise InvalidInput(f"an H-term is of the form segment or k_step, not {form!r}")
        self._form, self._steps = form, steps if form == "k_step" else 1
        self._hyperparameters, self._seeds = hyperparameters, seeds
        self._trajectories: Trajectories | None = None
        self._found: _Found | None = None
        self._rows_since = 0

    @classmethod
    def of(
        cls, shared: Mapping[str, Any], hyperparameters: Mapping[str, Tensor], seeds: Tensor
    ) -> HTerm | None:
        """The H-term of an algorithm's hyperparameters; None if it is off or not among them."""
        if shared.get("h_term", "off") == "off":
            return None
        return cls(shared["h_term"], shared["h_term_steps"], hyperparameters, seeds)

    def observe(self, rollout: Rollout) -> None:
        """Take in a rollout, before the first `draw` and whenever there is a new one."""
        if self._trajectories is None:
            self._trajectories = Trajectories(rollout)
        self._trajectories.add(rollout)
        self._rows_since += rollout.horizon
        if self._found is None or self._rows_since > self._trajectories.spare_rows:
            self._found, self._rows_since = self._find(self._trajectories), 0

    def draw(self, batch_size: int, number: Tensor) -> Windows:
        """B windows of every member with replacement, evenly: as many as have `batch_size` steps,
        but at least one.

        number int64 [M]: of this draw among the member's draws, from which its random numbers
        follow."""
        trajectories, found = self._trajectories, self._found
        if trajectories is None or found is None:
            raise InvalidInput("an H-term draws from rollouts, and has observed none")
        steps = torch.arange(self._steps, device=number.device)
        windows = max(1, batch_size // self._steps)
        keys = derive_key(hamiltonian_keys(self._seeds), number)
        bits = random_bits(keys.view(-1, 1), torch.arange(windows, device=number.device))
        available = found.cumulative[:, -1:]
        # (32 random bits * available) / 2^32: an even choice among those that are available.
        rank = (((bits >> 32) & 0xFFFFFFFF) * available) >> 32
        place = torch.searchsorted(found.cumulative, rank, right=True).clamp_(
            max=found.cumulative.shape[1] - 1
        )
        row = place.div(trajectories.num_envs, rounding_mode="floor")
        environment = place % trajectories.num_envs
        member = torch.arange(row.shape[0], device=row.device).view(-1, 1)
        rows = row.unsqueeze(-1) - steps  # [M, B, K]
        inside = rows >= found.first[row, member, environment].unsqueeze(-1)
        rows = torch.where(inside, rows, row.unsqueeze(-1))
        everywhere = environment.unsqueeze(-1).expand_as(rows)
        gain = torch.where(inside, found.gain[rows, member.unsqueeze(-1), everywhere], 0.0)
        ready = (available[:, 0] > 0) & (trajectories.count >= LEAST_TRANSITIONS)
        observation, action, mask = trajectories.take(
            found.origin, rows.flatten(1), everywhere.flatten(1)
        )
        return Windows(
            _cleared(observation, ready),
            _cleared(action, ready),
            None if mask is None else mask | ~ready.view(-1, 1, 1),
            gain,
            torch.where(ready, self._hyperparameters["h_term_weight"], 0.0),
        )

    def loss(self, windows: Windows, log_prob: Tensor) -> Tensor:
        """log_prob [M, B * K] of the windows' actions under the present actor -> [M], to be added
        to its loss."""
        log_prob = log_prob.view(windows.gain.shape)
        if self._form == "segment":
            return segment_loss(log_prob[..., 0], windows.gain[..., 0], windows.weight)
        return k_step_loss(
            log_prob, windows.gain, self._hyperparameters["h_term_discount"], windows.weight
        )

    @torch.enable_grad()
    def slope(self, windows: Windows, log_prob: Tensor) -> Tensor:
        """The derivative of each member's loss in its log-probabilities, [M, B * K]."""
        leaf = log_prob.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(windows, leaf).sum(), leaf)
        return slope

    def actor_loss(
        self, network: StackedNetwork, actor: NetworkActor, batch_size: int, number: Tensor
    ) -> Tensor:
        """The term of the loss [M] of `network`, with which `actor` acts; the rest is as in
        `draw`."""
        windows = self.draw(batch_size, number)
        head = cast("DeterministicHead | SquashedGaussianHead", actor.head)
        settings = dict(actor.settings)
        if "noise_scale" in settings:
            settings["noise_scale"] = settings["noise_scale"].clamp(min=_LEAST_NOISE)
        output = network(actor.normalize(windows.observation))
        return self.loss(windows, head.log_prob(output, settings, windows.action))

    def _find(self, trajectories: Trajectories) -> _Found:
        if self._form == "segment":
            pieces = trajectories.segments(SEGMENT_STEPS)
            kept, gain = good_segments(pieces)
        else:
            pieces = trajectories.episodes()
            kept, gain = good_episodes(pieces)
        cumulative = kept.transpose(0, 1).flatten(1).cumsum(1)
        return _Found(pieces.origin, cumulative, pieces.first, gain)


@dataclass(frozen=True, slots=True)
class _Found:
    """The steps that can be drawn.

    cumulative   [M, L * E]  steps that can be drawn, counted up to each place
    first, gain  [L, M, E]   where the row's piece begins, and what the row gains
    """

    origin: int
    cumulative: Tensor
    first: Tensor
    gain: Tensor


def _normalized(values: Tensor, kept: Tensor) -> Tensor:
    """(v - least) / (greatest - least) of each member's kept rows, 1 where these are equal: [L, M,
    E] -> [L, M, E]."""
    least = torch.where(kept, values, torch.inf).amin((0, 2), keepdim=True)
    greatest = torch.where(kept, values, -torch.inf).amax((0, 2), keepdim=True)
    span = greatest - least
    differ = kept & (span > 0)
    scaled = (values - least) / torch.where(span > 0, span, 1.0)
    return torch.where(differ, scaled, kept.to(values.dtype)).float()


def _cleared(rows: Tensor, ready: Tensor) -> Tensor:
    """rows [M, B, …] with zeros where a member is not `ready` [M]: its memory is uninitialized and
    may hold NaN."""
    return torch.where(ready.view(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))


def _check(log_prob: Tensor, gain: Tensor, weight: Tensor, dimensions: int) -> None:
    if (
        log_prob.dim() != dimensions
        or log_prob.shape != gain.shape
        or weight.shape != log_prob.shape[:1]
    ):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (log_prob, gain, weight))
        raise InvalidInput(
            f"log-probabilities, gains and weights of the shapes {shapes} do not fit"
        )
