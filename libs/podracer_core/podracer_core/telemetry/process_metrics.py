"""What every process tells of itself and of the machine's GPUs, read whenever somebody asks."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

from podracer_core.telemetry import metrics
from podracer_core.telemetry.instruments import Reading

__all__ = ["watch_gpus", "watch_process"]

_STATM = Path("/proc/self/statm")


def watch_process() -> None:
    """Processor time and memory of this process."""
    metrics.CPU.watch(_cpu_times)
    metrics.MEMORY.watch(_memory)


def watch_gpus() -> None:
    """The GPUs of this machine, where there are any and NVML is installed."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return  # no driver, so no GPU

    def utilization() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, {"gpu": str(index)}

    def memory() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetMemoryInfo(handle).used, {"gpu": str(index)}

    metrics.GPU_USE.watch(utilization)
    metrics.GPU_MEMORY.watch(memory)


def _cpu_times() -> Iterable[Reading]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [(used.ru_utime, {"state": "user"}), (used.ru_stime, {"state": "system"})]


def _memory() -> Iterable[Reading]:
    try:
        resident = int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most that it has ever been
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [(float(resident), {})]
