"""Seeds of episodes that nobody has seen: not the learner, whose streams are other words, nor an evaluation before."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection


def fresh_seeds(job_seed: int, work_id: str, count: int, seen: Collection[int] = ()) -> list[int]:
    """`count` different seeds from 0 to 2^63 - 1, none of `seen`: SHA-256 of the job's seed, the work and a number.

    A work that is leased again has the same ones.
    """
    avoided, found = set(seen), list[int]()
    for number in itertools.count():
        if len(found) == count:
            break
        seed = _seed(job_seed, work_id, number)
        if seed not in avoided:
            avoided.add(seed)
            found.append(seed)
    return found


def _seed(job_seed: int, work_id: str, number: int) -> int:
    digest = hashlib.sha256(f"podracer/{job_seed}/evaluation/{work_id}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
