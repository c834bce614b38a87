"""The seed of each episode of an environment that runs in a process; neither torch nor user code is imported."""

from __future__ import annotations

__all__ = ["episode_seed"]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def episode_seed(seed: int, episode: int) -> int:
    """What to pass to `reset`: `seed` itself for episode 0 if Gymnasium can take it, else 31 bits mixed from both.

    The mixture is SplitMix64's (Steele, Lea and Flood, OOPSLA 2014): an episode may last only a few steps, and
    `numpy.random.SeedSequence` takes as long as two steps of a cheap environment.
    """
    if episode == 0 and 0 <= seed < 2**31:
        return seed
    return _mix(_mix(seed + _GOLDEN) ^ _mix((episode + 1) * _GOLDEN)) >> 33


def _mix(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
