"""The running statistics behind an actor's observation normalizer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from podracer_core.buffers.rollout import Rollout
from podracer_core.networks import NetworkActor, RunningNormalizer

_PREFIX = "observations."


class ObservationStatistics:
    """Mean and scale of everything that the members have seen; the actor has a copy that changes when told.

    An actor that does not normalize (`limit` is None: it was told not to, or sees images) has none, and keeps its
    mean and scale.
    """

    def __init__(self, actor: NetworkActor) -> None:
        self._actor = actor
        size = actor.mean.shape[-1]
        self._running = None if actor.limit is None else RunningNormalizer(actor.members, size, actor.device)

    @property
    def running(self) -> RunningNormalizer | None:
        """None where nothing is normalized."""
        return self._running

    def show(self) -> None:
        """Have the actor normalize with the statistics as they are now."""
        if self._running is not None:
            self._actor.mean.copy_(self._running.mean.unsqueeze(1))
            self._actor.scale.copy_(self._running.scale().unsqueeze(1))

    def update(self, rollout: Rollout, active: Tensor) -> None:
        """Take in what the `active` [M] members have acted on in a rollout."""
        if self._running is not None:
            observation = rollout.observation[:-1].transpose(0, 1).flatten(1, 2).flatten(2)
            self._running.update(observation, rollout.valid.transpose(0, 1).flatten(1), active)
            self.show()

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's statistics and of what the actor uses."""
        state = {
            "observation_mean": self._actor.mean[member, 0].clone(),
            "observation_scale": self._actor.scale[member, 0].clone(),
        }
        if self._running is not None:
            state |= {f"{_PREFIX}{name}": value for name, value in self._running.member_state(member).items()}
        return state

    def load_member_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Overwrite one member with what `member_state` gave; other entries are ignored."""
        if self._running is not None:
            own = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
            self._running.load_member_state(member, own)
            self.show()
