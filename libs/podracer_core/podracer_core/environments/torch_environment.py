"""The base class of environments in torch: seeding, time limits, autoreset, broken worlds, state.

A new environment implements two functions of batched tensors, `initial_state` and `dynamics`, and
`observe` if the observation is not the state itself. It does not handle ends of episodes, seeds or
other environments. The same code runs on CPU and CUDA. No step waits for a CUDA device, and tensors
that outlive a step are written in place, so that a rollout can be captured in a CUDA graph.

`EpisodeStarts` draws the first states of the coming episodes ahead: on a CPU, where each small
tensor operation costs microseconds, drawing them one step's worth at a time would take longer than
the physics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

from podracer_core.device import compiled
from podracer_core.environments.vec_environment import (
    Step,
    VecEnvironment,
    allocate_step,
    check_seeds,
    check_state,
    check_time_limit,
    count_step,
    set_aside_broken_worlds,
)
from podracer_core.errors import InvalidInput
from podracer_core.random_numbers import derive_key

State = dict[str, Tensor]


class Episodes:
    """Which episode each of N environments plays, int64 [N] each, always the same tensors: `number`
    since the `seed`, whose random `stream` it draws from, and its `elapsed` steps."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.seed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.stream = derive_key(self.seed)
        self.number, self.elapsed = torch.zeros_like(self.seed), torch.zeros_like(self.seed)

    def begin(self, seeds: Tensor) -> Tensor:
        """Begin with episode 0 of `seeds`; the keys of the first states."""
        zeros = torch.zeros_like(self.seed)
        self.load({"seed": seeds, "episode": zeros, "elapsed": zeros})
        return derive_key(self.stream, self.number)

    def next(self, done: Tensor) -> Tensor:
        """Begin the next ones where `done` bool [N]; the keys of their first states."""
        self.elapsed.masked_fill_(done, 0)
        self.number += done
        return derive_key(self.stream, self.number)

    def state(self) -> dict[str, Tensor]:
        """The counters themselves, by their names in `VecEnvironment.state`."""
        return {"seed": self.seed, "episode": self.number, "elapsed": self.elapsed}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the counters of `state`."""
        for name, value in self.state().items():
            value.copy_(state[name])
        self.stream.copy_(derive_key(self.seed))


class EpisodeStarts:
    """A ring of `DEPTH` episodes for each of N environments; slot j holds the next one whose number
    is j modulo DEPTH.

    An environment ends at most one episode a step, so a ring that is full serves DEPTH steps
    without looking. What it holds depends on (stream, episode) alone, so filling it early or late
    changes nothing."""

    DEPTH = 16

    def __init__(
        self,
        draw: Callable[[Tensor], State],
        observe: Callable[[State, Tensor], None],
        observation: Tensor,
    ) -> None:
        """`draw` makes states from keys [K], `observe` writes their observations; `observation` is
        one of N."""
        self._draw = draw
        self._observe = observe
        self._num_envs = observation.shape[0]
        self._observation = observation.new_empty(
            self._num_envs * self.DEPTH, *observation.shape[1:]
        )
        # Slot first, so that a start is read from one place: the slots that a step takes lie far
        # apart.
        self._state: State = {}
        self._filled = False
        # (environments, episodes) of the steps since the last filling
        self._taken: list[tuple[Tensor, Tensor]] = []

    def forget(self) -> None:
        """Forget everything: the streams have changed."""
        self._filled = False
        self._taken = []

    def take(self, rows: Tensor, episodes: Episodes, state: State, observation: Tensor) -> None:
        """Start the next episode of the environments `rows` [K].

        Counts these up, and writes into `state` (environment axis last) and `observation` [N,
        *obs]."""
        if not self._filled:
            self._fill(episodes)
        elif len(self._taken) == self.DEPTH:
            self._refill(episodes.stream)
        number = episodes.number.index_select(0, rows).add_(1)
        episodes.number.index_copy_(0, rows, number)
        episodes.elapsed.index_fill_(0, rows, 0)
        self._taken.append((rows, number))
        slot = self._slot(rows, number)
        observation.index_copy_(0, rows, self._observation.index_select(0, slot))
        for name, value in state.items():
            value.movedim(-1, 0).index_copy_(0, rows, self._state[name].index_select(0, slot))

    def _slot(self, rows: Tensor, number: Tensor) -> Tensor:
        return number.bitwise_and(self.DEPTH - 1).add_(rows, alpha=self.DEPTH)

    def _fill(self, episodes: Episodes) -> None:
        """Draw the next DEPTH episodes of every environment."""
        rows = torch.arange(self._num_envs).repeat_interleave(self.DEPTH)
        number = episodes.number[:, None].add(torch.arange(1, self.DEPTH + 1)).flatten()
        self._draw_into_slots(rows, number, episodes.stream)
        self._filled = True

    def _refill(self, stream: Tensor) -> None:
        """Draw, into the slots taken since the last time, the episodes that come DEPTH later."""
        rows, numbers = (torch.cat(parts) for parts in zip(*self._taken, strict=True))
        self._taken = []
        self._draw_into_slots(rows, numbers.add_(self.DEPTH), stream)

    def _draw_into_slots(self, rows: Tensor, number: Tensor, stream: Tensor) -> None:
        slot = self._slot(rows, number)
        fresh = self._draw(derive_key(stream.index_select(0, rows), number))
        observation = self._observation.new_empty(slot.numel(), *self._observation.shape[1:])
        self._observe(fresh, observation)
        self._observation.index_copy_(0, slot, observation)
        for name, value in fresh.items():
            by_slot = value.movedim(-1, 0)
            if name not in self._state:
                with torch.inference_mode(False):  # made in it, it could not be written to outside
                    self._state[name] = by_slot.new_empty(
                        self._observation.shape[0], *by_slot.shape[1:]
                    )
            self._state[name].index_copy_(0, slot, by_slot)


class TorchEnvironment(VecEnvironment):
    """N worlds in tensors.

    A `State` is a dict of tensors whose LAST axis is the environment's, so that each variable is
    contiguous: "physics": [4, N]. Its names and shapes must not change. K below is N, or fewer
    while worlds start anew."""

    # False where no action can make the numbers infinite or NaN: saves looking for it at every
    # step.
    can_diverge: bool = True

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        max_episode_steps: int | None,
    ) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be at least 1, not {num_envs}", num_envs=num_envs)
        check_time_limit(max_episode_steps)
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.observation_space = observation_space
        self.action_space = action_space
        self.max_episode_steps = max_episode_steps
        self._episodes = Episodes(num_envs, self.device)
        self._state: State = {}
        self._own_step = allocate_step(self)
        self._compiled: Callable[[Tensor, Step], None] | None = None
        self._starts: EpisodeStarts | None = None
        if self.device.type == "cpu":
            self._starts = EpisodeStarts(
                self.initial_state, self.observe, self._own_step.observation
            )

    @abstractmethod
    def initial_state(self, key: Tensor) -> State:
        """The first states of K episodes, drawn from `key` int64 [K] (one stream an episode) with
        `random_numbers`."""

    @abstractmethod
    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next state, the reward [N] and whether the task ended, bool [N].

        May write into `state` and return it: the old state is not needed again.
        """

    def observe(self, state: State, out: Tensor) -> None:
        """Write the observations of K states into `out` [K, *obs].

        By default: the variable named "observation", or the only variable, with its last axis moved
        first."""
        if "observation" not in state and len(state) != 1:
            names = ", ".join(state)
            raise InvalidInput(
                f"{type(self).__name__} must define observe, or call one of {names} observation"
            )
        variable = state["observation"] if "observation" in state else next(iter(state.values()))
        out.copy_(variable.movedim(-1, 0).reshape(out.shape))

    @torch.no_grad()
    def reset(self, seeds: Tensor) -> Tensor:
        """See `VecEnvironment.reset`."""
        check_seeds(seeds, self.num_envs)
        self._forget_starts()
        self._write_state(self.initial_state(self._episodes.begin(seeds)))
        observation = self._own_step.observation
        self.observe(self._state, observation)
        return observation

    def set_ages(self, ages: Tensor) -> bool:
        """See `VecEnvironment.set_ages`."""
        self._episodes.elapsed.copy_(ages)
        return self.max_episode_steps is not None

    def compile(self) -> None:
        """See `VecEnvironment.compile`."""
        self._compiled = compiled(self._advance, self.device)

    @torch.no_grad()
    def step(self, action: Tensor, out: Step | None = None) -> Step:
        """See `VecEnvironment.step`."""
        if not self._state:
            raise InvalidInput("reset or load_state must come before step")
        self.check_action(action)
        out = out or self._own_step
        (self._compiled or self._advance)(action, out)
        return out

    def _advance(self, action: Tensor, out: Step) -> None:
        """A step, once it is known to be possible."""
        state, reward, terminated = self.dynamics(self._state, action)
        self._write_state(state)
        out.reward.copy_(reward)
        out.terminated.copy_(terminated)
        self.observe(self._state, out.final_observation)
        count_step(self._episodes.elapsed, self.max_episode_steps, out)
        out.valid.fill_(True)
        if self.can_diverge:
            set_aside_broken_worlds(out)
        out.observation.copy_(out.final_observation)
        done = out.terminated | out.truncated
        if self._starts is not None:
            self._restart_listed(self._starts, done.nonzero().squeeze(1), out.observation)
        else:
            self._restart_masked(done, out.observation)

    def state(self) -> dict[str, Tensor]:
        """See `VecEnvironment.state`: the counters, and "state.NAME" for every variable,
        environment axis first."""
        copies = {name: value.clone() for name, value in self._episodes.state().items()}
        return copies | {
            f"state.{name}": value.movedim(-1, 0).clone() for name, value in self._state.items()
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """See `VecEnvironment.load_state`."""
        if not self._state:
            self.reset(self._episodes.seed)
        check_state(state, self.state())
        self._forget_starts()
        self._episodes.load(state)
        for name, value in self._state.items():
            value.copy_(state[f"state.{name}"].movedim(0, -1))
        observation = self._own_step.observation
        self.observe(self._state, observation)
        return observation

    def _forget_starts(self) -> None:
        if self._starts is not None:
            self._starts.forget()

    def _write_state(self, state: State) -> None:
        if not self._state:
            # A clone keeps the order in memory, so that `initial_state` may have variables lie
            # world after world.
            with torch.inference_mode(False):  # made in it, it could not be written to outside
                self._state = {name: value.clone() for name, value in state.items()}
        for name, value in self._state.items():
            if state[name] is not value:
                value.copy_(state[name])

    def _restart_listed(self, starts: EpisodeStarts, rows: Tensor, observation: Tensor) -> None:
        """Start the next episode of `rows`, computing only these: on a CPU their number is known at
        once."""
        if rows.numel():
            starts.take(rows, self._episodes, self._state, observation)

    def _restart_masked(self, done: Tensor, observation: Tensor) -> None:
        """Start the next episode where `done`, in tensors of fixed size: the host must not wait for
        the device."""
        fresh = self.initial_state(self._episodes.next(done))
        for name, value in self._state.items():
            torch.where(done, fresh[name], value, out=value)
        self.observe(self._state, observation)
