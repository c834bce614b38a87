"""Resources of this machine, those in use, and those that the processes of each pod take."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

_FOREIGN_FRACTION = 0.1
"""A GPU of whose memory other programs use more than this fraction is not used."""
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of the container that we run in, version 2 and version 1."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that CUDA programs can use; `uuid` is what CUDA_VISIBLE_DEVICES takes."""

    uuid: str
    is_in_use: bool


@dataclass(frozen=True, slots=True)
class PodUse:
    """Resources that a pod takes: cores, averaged since the last look; bytes (shared pages in
    part); its own GPUs."""

    cores: float
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine. `available_bytes` is what can be had without swapping."""

    cores: float
    used_cores: float
    memory_bytes: int
    available_bytes: int
    gpus: tuple[Gpu, ...]
    pods: Mapping[str, PodUse]


class Machine:
    """Looks at the machine. Blocking: a look takes some 5 ms for each process of a pod."""

    def __init__(self) -> None:
        self._cores = float(len(os.sched_getaffinity(0)))
        self._gpus = Gpus()
        self._cpu_s: dict[int, float] = {}  # process: seconds at the last look
        self._looked_at: float | None = None

    def read(self, sessions: Mapping[str, Collection[int]], now_s: float) -> Reading:
        """`sessions`: for each pod, the sessions (by their first process) that its processes run
        in."""
        memory_bytes, available_bytes = _memory()
        return Reading(
            cores=self._cores,
            used_cores=psutil.cpu_percent() / 100.0 * (psutil.cpu_count() or 1),
            memory_bytes=memory_bytes,
            available_bytes=available_bytes,
            gpus=self._gpus.read(),
            pods=self._read_pods(sessions, now_s),
        )

    def _read_pods(
        self, sessions: Mapping[str, Collection[int]], now_s: float
    ) -> Mapping[str, PodUse]:
        members: dict[int, list[int]] = defaultdict(list)
        for pid in psutil.pids() if sessions else ():
            with contextlib.suppress(OSError):
                members[os.getsid(pid)].append(pid)
        elapsed_s = now_s - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at, former, self._cpu_s = now_s, self._cpu_s, {}
        uses = {}
        for pod, leaders in sessions.items():
            grown_s, size_bytes = 0.0, 0
            for pid in (pid for leader in leaders for pid in members[leader]):
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(pid)
                    times = process.cpu_times()
                    self._cpu_s[pid] = times.user + times.system
                    grown_s += max(0.0, self._cpu_s[pid] - former.get(pid, self._cpu_s[pid]))
                    size_bytes += _proportional_bytes(pid) or process.memory_info().rss
            uses[pod] = PodUse(grown_s / elapsed_s if elapsed_s > 0.0 else 0.0, size_bytes)
        return uses


class Gpus:
    """The GPUs by NVIDIA's management library; none where it is absent or broken, which is said
    once."""

    def __init__(self) -> None:
        self._is_open = False
        self._complained = False
        self._last: tuple[Gpu, ...] = ()

    def read(self) -> tuple[Gpu, ...]:
        """GPUs that this process may pass on; those of the last successful look if the library
        fails later."""
        if self._complained and not self._is_open:
            return ()
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            self._last = tuple(_visible(list(_devices()), os.environ.get("CUDA_VISIBLE_DEVICES")))
        except (pynvml.NVMLError, OSError, ValueError) as error:
            if not self._complained:
                logger.info("no GPU can be seen here: %s", error)
            self._complained = True
        return self._last


def _devices() -> Iterator[Gpu]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        yield Gpu(
            str(pynvml.nvmlDeviceGetUUID(handle)), memory.used > _FOREIGN_FRACTION * memory.total
        )


def _visible(gpus: list[Gpu], setting: str | None) -> list[Gpu]:
    """GPUs that CUDA_VISIBLE_DEVICES lets us use: numbers or beginnings of uuids, up to the first
    wrong one."""
    if setting is None:
        return gpus
    found: list[Gpu] = []
    for word in (word.strip() for word in setting.split(",")):
        if word.isdecimal():
            matching = gpus[int(word) : int(word) + 1]
        else:
            matching = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(matching) != 1:
            break
        found += matching
    return found


def _memory() -> tuple[int, int]:
    """Bytes that there are, and that are available: to the machine, or to our container where that
    has less."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for limit_file, use_file in _CGROUPS:
        # no such limit is the usual case; `max` is no number
        with contextlib.suppress(OSError, ValueError):
            limit = int(limit_file.read_text())
            in_use = int(use_file.read_text()) - _reclaimable_bytes(
                use_file.with_name("memory.stat")
            )
            total, available = min(total, limit), min(available, max(0, limit - in_use))
    return total, available


def _reclaimable_bytes(stat: Path) -> int:
    """Cached pages of files, which are given up when they are needed."""
    values = dict(line.split() for line in stat.read_text().splitlines())
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _proportional_bytes(pid: int) -> int:
    """Memory of a process in which pages shared by n count 1/n (PSS); 0 where the system does not
    tell."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return 0
