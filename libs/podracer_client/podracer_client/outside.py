"""Calls of third-party packages and services: each has a deadline, and errors hide secrets."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, TypeVar

from podracer_core.errors import DeadlineExpired, InvalidInput, PodracerError, Unavailable

Result = TypeVar("Result")

_SECRETS = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_LONGEST = 300


def require(module: str, extra: str) -> Any:
    """A module of an optional package. Raises InvalidInput with the command to install it if it is
    missing."""
    try:
        return import_module(module)
    except ImportError as error:
        message = (
            f"{error.name or module} is not installed; install it with `pip install "
            f"'podracer-client[{extra}]'`"
        )
        raise InvalidInput(message, reason="PACKAGE_MISSING") from error


def mlflow_client(uri: str) -> Any:
    """A client whose requests end in time."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return require("mlflow", "mlflow").MlflowClient(tracking_uri=uri, registry_uri=uri)


def within(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """The result of a call in its own thread, which is abandoned after the deadline.

    Raises DeadlineExpired, and Unavailable for the call's errors.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            future.set_exception(error)

    threading.Thread(target=run, name=what, daemon=True).start()
    try:
        return future.result(seconds)
    except PodracerError:
        raise
    except Exception as error:
        if not future.done():
            raise DeadlineExpired(f"{what}: no answer within {seconds:.0f} s") from error
        raise Unavailable(
            f"{what}: {type(error).__name__}: {_told(str(error))}", reason="OUTSIDE_FAILED"
        ) from error


def _told(text: str) -> str:
    """The first line of a message without credentials."""
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        text = text.replace(secret, "…")
    return _CREDENTIALS.sub("…", text.strip().partition("\n")[0])[:_LONGEST]
