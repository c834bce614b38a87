"""Podracer from Python: deep reinforcement learning in this process, or as a tournament of services
on this machine.

import podracer

result = podracer.train("CartPole-v1", algorithm="ppo", members=8, target=475)
result.policy(observation)
result.save("best")
podracer.load("best").evaluate(episodes=100)
podracer.run("job.yaml")

The generated gRPC stubs stand in the folders beside this file, which alone is written by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podracer_client.job_run import run
    from podracer_core.errors import PodracerError
    from podracer_core.in_process import Callback, Look, Policy, Result, load, train

__all__ = ["Callback", "Look", "PodracerError", "Policy", "Result", "load", "run", "train"]

_HOME = {
    "Callback": "podracer_core.in_process.training",
    "Look": "podracer_core.in_process.reporting",
    "PodracerError": "podracer_core.errors",
    "Policy": "podracer_core.in_process.result",
    "Result": "podracer_core.in_process.result",
    "load": "podracer_core.in_process.result",
    "run": "podracer_client.job_run",
    "train": "podracer_core.in_process.training",
}


def __getattr__(name: str) -> Any:
    """Load torch and the rest at first use only: every service imports this package for its
    stubs."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("gymnasium", "numpy", "safetensors", "torch"):
            message = f"{error.name}: pip install 'podracer-core[torch]'"
        elif error.name == "podracer_client":
            message = "the command and the services: pip install 'podracer-client[local]'"
        else:
            raise
        raise ImportError(f"podracer.{name} needs {message}", name=error.name) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
