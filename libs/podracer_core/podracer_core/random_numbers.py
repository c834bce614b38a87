"""Counter-based random numbers: a pure function of (key, counter), never of the order of the calls.

A key names a stream of one owner (an agent's action noise, one episode of one environment); the
counter names a number in it. So a member of a cohort draws the same numbers alone, beside others,
on a CPU or on a GPU, and a checkpoint needs to store only counters. Everything is elementwise int64
arithmetic without a host synchronization, so it can be captured in a CUDA graph; draw the noise of
a whole rollout in one call. `streams` has the keys.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014): the counter walks along a Weyl sequence and Stafford's "Mix13" finalizer
scrambles it. Integers wrap modulo 2^64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from podracer_core.errors import InvalidInput

_WORD = 1 << 64

# Everything random about an agent follows from its seed and these words. A word is used for one
# purpose only, so no two uses can draw the same numbers; an evaluation never sees an episode that
# an agent has trained on.
_ENVIRONMENT = 1
_ACTION = 2
_EVALUATION = 3
_INITIALIZATION = 4
_MINIBATCH = 5
_PERTURBATION = 6
_REPLAY = 7
_UPDATE_NOISE = 8
_HAMILTONIAN = 9
_SUBSET = 10
_LEARNER = 11
_AGE = 12
_MEMBER = 13

# The purposes of evaluation episodes: each has its own, so that a candidate is not confirmed on
# what selected it.
SCREENING, ADMISSION, CONFIRMATION, COMPARISON = 0, 1, 2, 3


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as `value` modulo 2^64."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


# 2^64 / golden ratio, odd: the Weyl sequence of SplitMix64
_COUNTER_STEP = _signed(0x9E3779B97F4A7C15)
# another odd constant, so that no child key is one of its parent's numbers
_WORD_STEP = _signed(0xD1342543DE82EF95)
_KEY_OFFSET = _signed(0x2545F4914F6CDD1D)
_MIX_FIRST = _signed(0xBF58476D1CE4E5B9)
_MIX_SECOND = _signed(0x94D049BB133111EB)


def _mix_(z: Tensor) -> Tensor:
    """Scramble int64 `z` in place with Stafford's Mix13, a bijection of the 64-bit words."""
    for shift, factor in ((30, _MIX_FIRST), (27, _MIX_SECOND)):
        # int64 shifts keep the sign in torch; the mask makes them logical.
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    return z.bitwise_xor_((z >> 31).bitwise_and_((1 << 33) - 1))


def derive_key(
    seed: Tensor | int, *words: Tensor | int, device: torch.device | str | None = None
) -> Tensor:
    """Mix `words` into `seed`, one after the other; returns int64 keys of the broadcast shape of
    all of them.

    Every word opens an independent family of streams: `derive_key(seed, STREAM_NOISE,
    environment_index)`. The order of the words matters, and `derive_key(derive_key(seed, a), b)` is
    not `derive_key(seed, a, b)`. Without tensors the result is a scalar on `device`; with them it
    lies where they lie."""
    if isinstance(seed, Tensor):
        key = seed.to(torch.int64)
    else:
        place = (
            device
            if device is not None
            else next((w.device for w in words if isinstance(w, Tensor)), None)
        )
        key = torch.tensor(_signed(seed), dtype=torch.int64, device=place)
    key = _mix_(key + _COUNTER_STEP)
    for word in words:
        step = (
            word.to(torch.int64) * _WORD_STEP
            if isinstance(word, Tensor)
            else _signed(word * _WORD_STEP)
        )
        key = _mix_((key ^ _KEY_OFFSET) + step)
    return key


def random_bits(key: Tensor, counter: Tensor | int) -> Tensor:
    """64 random bits as int64, of the broadcast shape of `key` and `counter` (which are not
    altered)."""
    if isinstance(counter, Tensor):
        return _mix_(key + counter * _COUNTER_STEP)
    return _mix_(key + _signed(counter * _COUNTER_STEP))


def uniform(key: Tensor, counter: Tensor | int) -> Tensor:
    """float32 in [0, 1): the multiples of 2^-24, all equally likely. Shape: broadcast(key,
    counter)."""
    bits = random_bits(key, counter)
    return (bits >> 40).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def normal(key: Tensor, counter: Tensor | int) -> Tensor:
    """Standard normal float32, always finite, at most 6.7 in size. Shape: broadcast(key, counter).

    Box and Muller's transform (1958) of the two halves of one 64-bit word: sqrt(-2 ln u) cos(2 pi
    v), with u in (0, 1]."""
    bits = random_bits(key, counter)
    angle = (bits >> 32).to(torch.float32).mul_(2.0 * math.pi * 2.0**-32).cos_()
    # + 1 keeps the logarithm finite; rounding to float32 can only push u up to 1, whose logarithm
    # is 0.
    radius = (
        bits.bitwise_and_(0xFFFFFFFF)
        .add_(1)
        .to(torch.float32)
        .mul_(2.0**-32)
        .log_()
        .mul_(-2.0)
        .sqrt_()
    )
    return radius.mul_(angle)


def integers(key: Tensor, counter: Tensor | int, bound: int) -> Tensor:
    """int64 in [0, bound), 1 <= bound <= 2^31. Shape: broadcast(key, counter). The bias is at most
    bound / 2^32."""
    if not 1 <= bound <= 1 << 31:
        raise InvalidInput(f"bound must lie in [1, 2^31], not {bound}", bound=bound)
    return (random_bits(key, counter) >> 32).bitwise_and_(0xFFFFFFFF).mul_(bound) >> 32


def permutation(key: Tensor, counter: Tensor | int, length: int) -> Tensor:
    """A permutation of 0 … length-1 for every key, as int64 [M, length]; key [M], counter an int,
    [] or [M]."""
    if length < 1:
        raise InvalidInput(f"length must be at least 1, not {length}", length=length)
    positions = torch.arange(length, dtype=torch.int64, device=key.device)
    index_mask = (1 << length.bit_length()) - 1
    # The position itself fills the low bits, so no two words are equal and every device sorts them
    # alike.
    words = random_bits(derive_key(key, counter)[..., None], positions)
    words = words.bitwise_and_(~index_mask).bitwise_or_(positions)
    return words.sort(dim=-1).values.bitwise_and_(index_mask)


def environment_keys(
    seeds: Tensor, num_envs: int, first_environment: int = 0, session: int | Tensor = 0
) -> Tensor:
    """Episode keys of training environments: seeds int64 [M] -> int64 [M, E]. A new session (int,
    or int64 [M]) has new episodes."""
    if isinstance(session, Tensor):
        session = session.view(-1, 1)
    return derive_key(
        seeds.view(-1, 1), _ENVIRONMENT, session, _indices(seeds, num_envs, first_environment)
    )


def first_ages(keys: Tensor, episode_steps: int) -> Tensor:
    """How old the first episodes of training environments count as, in steps: 0 … episode_steps -
    1, from each environment's key."""
    return integers(derive_key(keys, _AGE), 0, min(episode_steps, 1 << 31))


def action_keys(seeds: Tensor, num_envs: int, first_environment: int = 0) -> Tensor:
    """Action noise streams: seeds int64 [M] -> int64 [M, E]; the counter is the agent's own step
    count."""
    return derive_key(seeds.view(-1, 1), _ACTION, _indices(seeds, num_envs, first_environment))


def evaluation_seeds(job_seed: int, purpose: int, episodes: int, *, first: int = 0) -> list[int]:
    """Episode keys for an evaluation, not negative: `purpose` is SCREENING, one of the others
    above, or your own."""
    keys = derive_key(job_seed, _EVALUATION, purpose, torch.arange(first, first + episodes))
    return [int(key) for key in keys.bitwise_and(torch.iinfo(torch.int64).max)]


def member_seeds(seed: int, members: int) -> list[int]:
    """Seeds of the agents of one training, not negative: two trainings with different seeds share
    none."""
    keys = derive_key(seed, _MEMBER, torch.arange(members))
    return [int(key) for key in keys.bitwise_and(torch.iinfo(torch.int64).max)]


def initialization_keys(seeds: Tensor, network: int, layer: int) -> Tensor:
    """Keys of initial weights, int64 [M] -> [M]: `network` tells an algorithm's networks apart
    (actor, critic, …)."""
    return derive_key(seeds, _INITIALIZATION, network, layer)


def minibatch_keys(seeds: Tensor) -> Tensor:
    """Keys of minibatch permutations, int64 [M] -> [M]; the counter is the agent's own count of
    epochs."""
    return derive_key(seeds, _MINIBATCH)


def learner_seeds(seeds: Tensor, rank: int) -> Tensor:
    """Seeds of the updates of a learner, int64 [M] -> [M]: several of one cohort draw different
    numbers. Those of rank 0 are the agents' own."""
    return derive_key(seeds, _LEARNER, rank) if rank else seeds


def replay_keys(seeds: Tensor) -> Tensor:
    """Keys of samples from a replay buffer, int64 [M] -> [M]; the counter goes on with every number
    drawn."""
    return derive_key(seeds, _REPLAY)


def update_noise_keys(seeds: Tensor) -> Tensor:
    """Keys of the noise in gradient steps (actions that are imagined), int64 [M] -> [M]."""
    return derive_key(seeds, _UPDATE_NOISE)


def subset_keys(seeds: Tensor) -> Tensor:
    """Keys of the choice of critics that give a target, int64 [M] -> [M]."""
    return derive_key(seeds, _SUBSET)


def hamiltonian_keys(seeds: Tensor) -> Tensor:
    """Keys of the windows that an H-term draws, int64 [M] -> [M]."""
    return derive_key(seeds, _HAMILTONIAN)


def perturbation_key(seed: int) -> Tensor:
    """The key of noise that is added to a copied agent's weights, int64 []."""
    return derive_key(seed, _PERTURBATION)


def _indices(seeds: Tensor, num_envs: int, first: int) -> Tensor:
    return torch.arange(first, first + num_envs, device=seeds.device)
