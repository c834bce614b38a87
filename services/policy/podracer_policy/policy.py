"""One version of a policy that acts for others."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from podracer_core.catalogue.spaces import Space
from podracer_core.checkpoint import (
    Checkpoint,
    load_ensemble,
    load_ensemble_policy,
    load_policy,
    pack_policy,
    rule_of,
)
from podracer_core.checkpoint.policy import (
    array_spaces,
    observation_origin,
    original_space,
    random_observations,
)
from podracer_core.environments.spaces import action_mask_parts, from_gymnasium
from podracer_core.errors import InvalidInput

MAX_POLICIES = 100
"""Most policies that act together."""

_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")
_WARM_ROWS = (1, 8)
_WARM_CALLS = 3
_AGENT = re.compile(r"projects/([^/]+)/.*")


class ServedPolicy:
    """A greedy policy, or several that act as one, with normalization inside; it has acted before
    it is ready.

    For the same batch it acts exactly as `load_policy` and `load_ensemble_policy` do. In a batch of
    another size actions in a box differ by rounding, and of two choices that are equally good but
    for rounding either may be taken.

    name, version       by which it is asked for
    source              where it came from, for people
    agents              names, the best first
    rule                how several act together; "" for one
    observation_space   what it takes, a box; float32, uint8 for images, float64 with an origin
    original_space      of the environment's observations, before they become a flat row
    mask_parts          flags in a mask of its actions, for each place of an action; empty where it
                        knows no masks
    load_time           seconds since the epoch
    request_count       requests answered; the batcher adds to it
    """

    def __init__(
        self,
        name: str,
        version: str,
        checkpoints: Sequence[Checkpoint],
        rule: str = "",
        source: str = "",
    ) -> None:
        """`checkpoints`: the best first. Raises InvalidInput for what cannot act, or not
        together."""
        require_word("name", name)
        require_word("version", version)
        if not 1 <= len(checkpoints) <= MAX_POLICIES:
            raise InvalidInput(f"checkpoints: expected 1 to {MAX_POLICIES}, got {len(checkpoints)}")
        self.name, self.version, self.source = name, version, source
        self.agents = [str(checkpoint.metadata.get("agent", "")) for checkpoint in checkpoints]
        # Of no project (""): for no token of a project.
        self.projects = frozenset(
            match[1] if match else "" for match in map(_AGENT.fullmatch, self.agents)
        )
        self.digest = digest_of(checkpoints)
        chosen = rule_of(checkpoints, rule)
        self.rule = chosen if len(checkpoints) > 1 else ""
        self._policy = (
            load_ensemble_policy(checkpoints, rule)
            if len(checkpoints) > 1
            else load_policy(checkpoints[0])
        )
        observations, actions = array_spaces(checkpoints[0])
        self.observation_shape: tuple[int, ...] = tuple(observations.shape)
        self.observation_dtype = random_observations(checkpoints[0], 1).dtype
        self.mask_parts = tuple(action_mask_parts(actions))
        # A policy by itself knows no masks, an actor does.
        self._masked = load_ensemble(checkpoints, rule) if self.mask_parts else None
        self.original_space = original_space(checkpoints[0])
        self._origin = observation_origin(checkpoints[0])
        dtype = str(self.observation_dtype).removeprefix("torch.")
        self.observation_space: Space = replace(from_gymnasium(observations), dtype=dtype)  # type: ignore[arg-type]  # a box
        self.action_space: Space = from_gymnasium(actions)
        self._seconds_alone, self._seconds_a_row = 0.0, 0.0
        self._warm(checkpoints[0])
        self.load_time = time.time()
        self.request_count = 0

    def seconds_for(self, rows: int) -> float:
        """About how long `act` takes, as it did when this policy was made; rather more than
        less."""
        return self._seconds_alone + rows * self._seconds_a_row

    def act(self, observations: Tensor, masks: Tensor | None = None) -> Tensor:
        """observations [B, *obs] raw, masks [B, sum(mask_parts)] bool (the allowed ones) -> greedy
        actions [B, *action] in the environment's units."""
        with torch.inference_mode():
            if masks is None or self._masked is None:
                actions: Tensor = self._policy(observations)
                return actions
            if observations.dtype == torch.float64:
                observations = (observations - self._origin).float()
            return self._masked.greedy(observations.unsqueeze(0), masks.unsqueeze(0))[0]

    def _warm(self, checkpoint: Checkpoint) -> None:
        """Act a few times: the first takes long. Raises InvalidInput for numbers that are not
        finite."""
        seconds = []
        for rows in _WARM_ROWS:
            observations = random_observations(checkpoint, rows)
            if not torch.isfinite(self.act(observations).double()).all():
                message = f"{self.name} {self.version} acts with numbers that are not finite"
                raise InvalidInput(message, reason="NOT_FINITE")
            seconds.append(min(self._timed(observations) for _ in range(_WARM_CALLS)))
        self._seconds_alone, self._seconds_a_row = seconds[0], seconds[-1] / _WARM_ROWS[-1]

    def _timed(self, observations: Tensor) -> float:
        began = time.perf_counter()
        self.act(observations)
        return time.perf_counter() - began


def require_word(field: str, value: str) -> None:
    """Raises InvalidInput unless `value` may name a policy or a version."""
    if not _WORD.fullmatch(value):
        raise InvalidInput.of(
            field, f"expected 1 to 100 letters, digits, '.', '-' and '_', got {value[:110]!r}"
        )


def digest_of(checkpoints: Sequence[Checkpoint]) -> str:
    """SHA-256 of what acts."""
    digest = hashlib.sha256()
    for checkpoint in checkpoints:
        digest.update(hashlib.sha256(pack_policy(checkpoint)).digest())
    return digest.hexdigest()
