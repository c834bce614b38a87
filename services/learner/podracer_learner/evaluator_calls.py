"""Single calls to whichever evaluator answers, from a main thread that must notice what happens meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer_core.errors import InvalidInput, PreconditionFailed, Unavailable
from podracer_core.rpc.backoff import Backoff
from podracer_core.rpc.status import translated_errors
from podracer_learner.user_files import FetchedFiles, wants_files

__all__ = ["EvaluatorCall", "answer_of_any"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_POLL_S = 0.1
_RETRY_S = (0.05, 1.0)


class EvaluatorCall:
    """One unary call, with the files that its evaluator may lack. `check` is called while waiting; raises to give up,
    which cancels the call."""

    def __init__(self, files: FetchedFiles, timeout_s: float, check: Callable[[], None]) -> None:
        self._files, self._timeout_s, self._check = files, timeout_s, check

    def ask(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        """The answer of one evaluator. Raises what it says, and Unavailable where it is lost."""
        try:
            return self._answer(stub, method, request)
        except PreconditionFailed as error:
            if not wants_files(error):
                raise
        self._files.deliver(stub.PutFile, evaluator_service_pb2.PutFileRequest).result(self._check)
        return self._answer(stub, method, request)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left_s, _POLL_S))

    def _answer(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        done = threading.Event()
        with translated_errors(method=method):
            call = getattr(stub, method).future(request, timeout=self._timeout_s)
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(_POLL_S):
                    self._check()
                return call.result()
            finally:
                call.cancel()


def answer_of_any(
    stubs: Sequence[EvaluatorServiceStub], call: EvaluatorCall, method: str, request: Any, patience_s: float
) -> Any:
    """The answer of the first evaluator that gives one; they are asked again and again for `patience_s` since the first
    was lost, then Unavailable (EVALUATOR_LOST) is raised."""
    if not stubs:
        raise InvalidInput("the split layout needs evaluators (PODRACER_EVALUATORS)", reason="NO_EVALUATORS")
    deadline: float | None = None
    waits = Backoff(*_RETRY_S)
    while True:
        for stub in stubs:
            try:
                return call.ask(stub, method, request)
            except Unavailable as error:
                logger.warning("an evaluator is lost: %s", error.message)
                deadline = deadline or time.monotonic() + patience_s
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"no evaluator has answered for {patience_s:.0f} s: {error.message}", reason="EVALUATOR_LOST"
                    ) from error
        call.wait(next(waits))
