"""The destinations of `podracer log`, each imported when it is used."""

from __future__ import annotations

from importlib import import_module

from podracer.orchestrator.v1 import job_pb2
from podracer_client.loggers.logger import Logger
from podracer_core.errors import InvalidInput

_LOGGERS = {"tensorboard": "TensorBoardLogger", "mlflow": "MlflowLogger", "wandb": "WandbLogger"}


def open_logger(target: str, job: job_pb2.Job) -> Logger:
    """`tensorboard:DIR`, `mlflow:URI` or `wandb:PROJECT`. Raises InvalidInput for any other, or if
    a package is missing."""
    kind, _, place = target.partition(":")
    if kind not in _LOGGERS or not place:
        message = f"--to {kind}: expected tensorboard:DIR, mlflow:URI or wandb:PROJECT"
        raise InvalidInput(message, reason="UNKNOWN_DESTINATION")
    logger: Logger = getattr(import_module(f"podracer_client.loggers.{kind}"), _LOGGERS[kind])(
        place, job
    )
    return logger
