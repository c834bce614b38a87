"""What tells pods apart: a pod of the pool serves any job that asks for its kind."""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1 << 20
_FUSED_BYTES = 400 * MIB
_PROCESS_BYTES = 250 * MIB
"""First guesses: a learner that does all by itself, and each process of a split pod (measured: 240 to 330 MiB)."""

_NAME = re.compile(r"(?:fused|split(?P<workers>\d+))(?:-gpu(?P<gpus>\d+))?(?:-threads(?P<threads>\d+))?")


@dataclass(frozen=True, slots=True)
class PodKind:
    """The processes of a pod. `workers` 0 in the fused layout; `threads` of each process, 0: what the machine gives."""

    is_fused: bool = True
    workers: int = 0
    gpus: int = 0
    threads: int = 0

    @property
    def name(self) -> str:
        """`fused`, `split2`, `fused-gpu1`, `split1-threads4`: the beginning of its pods' names."""
        words = ["fused" if self.is_fused else f"split{self.workers}"]
        words += [f"gpu{self.gpus}"] if self.gpus else []
        words += [f"threads{self.threads}"] if self.threads else []
        return "-".join(words)

    @classmethod
    def parse(cls, name: str) -> PodKind:
        """The kind of a name; what is no kind's name gives the plainest one."""
        match = _NAME.fullmatch(name)
        if match is None:
            return cls()
        workers, gpus, threads = (int(match[word] or 0) for word in ("workers", "gpus", "threads"))
        return cls(match["workers"] is None, workers, gpus, threads)

    @property
    def layout(self) -> str:
        return "FUSED" if self.is_fused else "SPLIT"

    @property
    def busy_processes(self) -> int:
        """Those that compute at the same time. A split pod's learner and its workers take turns, or one of them has
        time to spare, and its evaluator waits for most of it: on two cores Ant-v5 with a worker of two threads takes
        6,700 steps/s in lock-step and 7,500 ahead, with one thread each 4,200 and 6,000."""
        return max(self.workers, 1)

    @property
    def memory_bytes(self) -> int:
        """What a pod needs, as long as nobody has measured one."""
        return _FUSED_BYTES if self.is_fused else (self.workers + 2) * _PROCESS_BYTES
