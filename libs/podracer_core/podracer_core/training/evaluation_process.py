"""Evaluation in a process of its own, beside training on a GPU.

    python -m podracer_core.training.evaluation_process DESCRIPTOR

is that process. Messages go over a pipe: JSON, and policies as safetensors.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from typing import Any, ClassVar

import safetensors.torch
import torch

from podracer_core.algorithms import CohortConfig, MemberConfig
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.device import set_up_torch
from podracer_core.environments.processes import core_count, scrubbed_environment
from podracer_core.errors import Unavailable, UserCodeFailed
from podracer_core.evaluate import evaluator_class, result_from_json, result_to_json
from podracer_core.training.evaluation_backend import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
    PolicyEvaluation,
)

_SENT = ("order_id", "seeds", "first_episodes", "admission_score", "screening", "required_score")
_LEAST_S = 0.1  # for an order
_LEFT = 2  # cores for training


class ProcessBackend(EvaluationBackend):
    """Evaluates on the CPU's cores but two, one order after the other, while training continues.
    With `keep` the process, which takes seconds to start, then waits for this process's next
    backend.

    Raises Unavailable once the process has ended, and UserCodeFailed for an error of the evaluator
    or the environment."""

    beside = True
    _spare: ClassVar[tuple[subprocess.Popen[bytes], Connection[Any, Any]] | None] = None

    def __init__(
        self,
        cohort: CohortConfig,
        spec: EnvironmentSpec,
        evaluator: str = "",
        *,
        keep: bool = False,
    ) -> None:
        """`spec` has no files in an object store. Raises InvalidInput if there is no such
        evaluator."""
        evaluator_class(evaluator)
        self._names = [member.name for member in cohort.members]
        self._waiting: deque[tuple[dict[str, Any], bytes]] = deque()
        self._is_ready = self._is_busy = self._is_closed = False
        spare, ProcessBackend._spare = ProcessBackend._spare, None
        self._process, self._connection = spare if spare and spare[0].poll() is None else _start()
        self._keeps = keep
        _send(
            self._connection,
            cohort=asdict(cohort),
            environment=spec.to_metadata(),
            evaluator=evaluator,
        )

    @property
    def ready(self) -> bool:
        if not self._is_ready:
            self.poll()
        return self._is_ready

    def submit(self, order: EvaluationOrder) -> None:
        message = {name: getattr(order, name) for name in _SENT}
        message["agents"] = [self._names[member] for member in order.members]
        copies = {
            # else they may share memory
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in order.actor.state().items()
        }
        self._waiting.append((message, safetensors.torch.save(copies)))
        self._send_next()

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        answers: list[EvaluationAnswer] = []
        try:
            # One at a time: what comes after an answer may be an error.
            while not answers and self._connection.poll(timeout_s):
                message = json.loads(self._connection.recv_bytes())
                if "error" in message:
                    self._keeps = False  # it ends now
                    raise UserCodeFailed(
                        f"evaluation failed: {message['error']}",
                        user_traceback=message["traceback"],
                    )
                if "order_id" not in message:
                    self._is_ready = True
                elif self._is_ready:  # else it is an answer to the backend before
                    results = tuple(map(result_from_json, message["results"]))
                    answers.append(
                        EvaluationAnswer(message["order_id"], results, message["duration_s"])
                    )
                    self._is_busy = False
                self._send_next()
        except (EOFError, OSError) as error:
            raise Unavailable(
                f"the process that evaluates has ended, with {self._process.wait()}"
            ) from error
        return answers

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeps and self._process.poll() is None and ProcessBackend._spare is None:
            ProcessBackend._spare = self._process, self._connection
            return
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _send_next(self) -> None:
        """Send the next order if the process waits for one: a policy is larger than what the pipe
        takes at once."""
        if self._waiting and self._is_ready and not self._is_busy:
            message, policy = self._waiting.popleft()
            self._is_busy = True
            if (left_s := self.left_s()) < math.inf:
                message["timeout_s"] = max(_LEAST_S, left_s)
            _send(self._connection, **message)
            self._connection.send_bytes(policy)


def _start() -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=scrubbed_environment(os.environ) | {"CUDA_VISIBLE_DEVICES": ""},
            process_group=0,  # Ctrl-C is for training
        )
    return process, ours


def main(descriptor: int) -> None:
    """Evaluate orders until the other side is gone."""
    set_up_torch(max(1, core_count() - _LEFT))
    parent = os.getppid()
    with Connection(descriptor) as connection:
        try:
            _serve(connection, lambda: None if os.getppid() == parent else sys.exit())
        except (EOFError, ConnectionError):
            pass
        except Exception as error:  # noqa: BLE001 - the other side raises it
            _send(
                connection,
                error=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(),
            )


def _serve(connection: Connection[Any, Any], check: Callable[[], None]) -> None:
    while True:
        message = json.loads(connection.recv_bytes())
        if "cohort" in message:
            members = tuple(MemberConfig(**member) for member in message["cohort"].pop("members"))
            cohort = CohortConfig(members=members, **message["cohort"])
            spec = EnvironmentSpec.from_metadata(message["environment"])
            evaluation = PolicyEvaluation(cohort, spec, "cpu", check, message["evaluator"])
            _send(connection)
            continue
        order_id, began_at = message.pop("order_id"), time.monotonic()
        results, _ = evaluation.evaluate(
            tensors=safetensors.torch.load(connection.recv_bytes()), **message
        )
        told = [result_to_json(result) for result in results]
        duration_s = time.monotonic() - began_at
        _send(connection, order_id=order_id, results=told, duration_s=duration_s)


def _send(connection: Connection[Any, Any], **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
