"""Evaluations and inspections, by the first evaluator that answers, or in this process.

The works INSPECT and EVALUATE wait for their answer. Evaluations beside training (RemoteBackend)
are requested, and collected when they arrive: a lost evaluator never blocks training."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, tensor_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer.evaluator.v1.evaluator_service_pb2_grpc import EvaluatorServiceStub
from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.catalogue import GREEDY_EPISODES
from podracer_core.checkpoint import (
    POLICY_GROUPS,
    Checkpoint,
    evaluate_checkpoints,
    pack_policy,
    rule_of,
)
from podracer_core.environments import device_for, evaluation_device
from podracer_core.errors import (
    DeadlineExpired,
    Exhausted,
    InvalidInput,
    PodracerError,
    PreconditionFailed,
    Unavailable,
    UserCodeFailed,
)
from podracer_core.evaluate import EvaluationResult
from podracer_core.training import (
    EvaluationAnswer,
    EvaluationBackend,
    EvaluationOrder,
    Occasions,
    processor_seconds,
)
from podracer_learner.background import BackgroundTask, pause
from podracer_learner.checkpoints import read_references
from podracer_learner.config import LearnerConfig
from podracer_learner.lease import HeldLease
from podracer_learner.peers import Peers
from podracer_learner.user_files import FetchedFiles, UserFiles, wants_files
from podracer_platform.carriers import (
    CARRIER_FAILED,
    CarrierFailed,
    CarrierOffering,
    Endpoint,
    SlotWriter,
    TensorEncoder,
    carrier_name,
    chunk_messages,
)
from podracer_platform.messages import (
    environment_from_message,
    seconds_from_duration,
    seconds_to_duration,
)
from podracer_platform.rpc import Backoff, StreamCall, translated_errors
from podracer_platform.service import own_build
from podracer_platform.telemetry import NO_SPAN, ORDERS, Span, current, span
from podracer_platform.training_messages import inspected, result_from_message, result_to_message

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_RETRY_S = (0.05, 1.0)
_INSPECTION_S, _INSPECTION_SLACK_S = 120.0, 15.0
_EVALUATION_S, _EVALUATION_SLACK_S = 600.0, 5.0


class EvaluatorCall:
    """One unary call, with the files that its evaluator may lack. `check` is called while waiting
    and raises to cancel the call."""

    def __init__(self, files: FetchedFiles, timeout_s: float, check: Callable[[], None]) -> None:
        self._files, self._timeout_s, self.check = files, timeout_s, check

    def ask(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        """The answer of one evaluator. Raises its errors, and Unavailable if it is lost."""
        try:
            return self._answer(stub, method, request)
        except PreconditionFailed as error:
            if not wants_files(error):
                raise
        self._files.deliver(stub.PutFile, evaluator_service_pb2.PutFileRequest).result(self.check)
        return self._answer(stub, method, request)

    def _answer(self, stub: EvaluatorServiceStub, method: str, request: Any) -> Any:
        done = threading.Event()
        with translated_errors(method=method):
            call = getattr(stub, method).future(request, timeout=self._timeout_s)
            call.add_done_callback(lambda _: done.set())
            try:
                while not done.wait(_POLL_S):
                    self.check()
                return call.result()
            finally:
                call.cancel()


def answer_of_any(
    stubs: Sequence[EvaluatorServiceStub],
    call: EvaluatorCall,
    method: str,
    request: Any,
    patience_s: float,
) -> Any:
    """The answer of the first evaluator that answers. Retries for `patience_s` since the first one
    was lost, then raises Unavailable (EVALUATOR_LOST)."""
    _require_evaluators(stubs)
    deadline: float | None = None
    waits = Backoff(*_RETRY_S)
    while True:
        for stub in stubs:
            try:
                return call.ask(stub, method, request)
            except Unavailable as error:
                logger.warning("lost an evaluator: %s", error.message)
                deadline = deadline or time.monotonic() + patience_s
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"no evaluator has answered for {patience_s:.0f} s: {error.message}",
                        reason="EVALUATOR_LOST",
                    ) from error
        pause(next(waits), call.check)


def _require_evaluators(stubs: Sequence[EvaluatorServiceStub]) -> None:
    if not stubs:
        raise InvalidInput(
            "the split layout needs evaluators (PODRACER_EVALUATORS)", reason="NO_EVALUATORS"
        )


def inspect_environment_for(
    work: pod_service_pb2.InspectWork, config: LearnerConfig, peers: Peers, files: UserFiles
) -> evaluator_service_pb2.InspectResponse:
    """The environment's description, and warnings. Raises UserCodeFailed with the user's traceback,
    InvalidInput if the environment of `retrain` does not fit, and the errors of `files`."""
    found = _inspect(work, work.environment, config, peers, files)
    if work.HasField("retrain_environment"):
        try:
            later = _inspect(work, work.retrain_environment, config, peers, files)
        except InvalidInput as error:
            raise InvalidInput(f"retrain.kwargs: {error.message}", reason=error.reason) from error
        except UserCodeFailed as error:
            message = f"retrain.kwargs: {error.message}"
            raise UserCodeFailed(
                message, user_traceback=error.user_traceback, reason=error.reason
            ) from error
        spaces = [
            (each.description.observation_space, each.description.action_space)
            for each in (found, later)
        ]
        if spaces[0] != spaces[1]:
            raise InvalidInput(
                "retrain.kwargs: these change the environment's observations or actions"
            )
    return found


def _inspect(
    work: pod_service_pb2.InspectWork,
    environment: environment_pb2.EnvironmentSpec,
    config: LearnerConfig,
    peers: Peers,
    files: UserFiles,
) -> evaluator_service_pb2.InspectResponse:
    timeout_s = seconds_from_duration(work.timeout) or _INSPECTION_S
    if config.layout == "fused":
        require_user_code_allowed(environment, config)
    with files.fetch(environment_from_message(environment)) as fetched:
        if config.layout == "split":
            request = evaluator_service_pb2.InspectRequest(
                environment=environment, timeout=work.timeout
            )
            call = EvaluatorCall(fetched, timeout_s + _INSPECTION_SLACK_S, files.check)
            response: evaluator_service_pb2.InspectResponse = answer_of_any(
                peers.evaluators, call, "Inspect", request, config.peer_patience
            )
            return response
        return BackgroundTask(lambda: _inspect_here(fetched, timeout_s), "inspection").result(
            files.check
        )


def require_user_code_allowed(
    environment: environment_pb2.EnvironmentSpec, config: LearnerConfig
) -> None:
    """Raise InvalidInput if this fused pod may not start the environment."""
    if environment.entry_point and not config.runs_user_code:
        raise InvalidInput(
            f"this fused pod does not run user code ({environment.entry_point}); use the split "
            "layout, or allow it (PODRACER_ALLOW_USER_CODE, on Linux with Landlock)",
            reason="USER_CODE_NOT_ALLOWED",
        )


def _inspect_here(fetched: FetchedFiles, timeout_s: float) -> evaluator_service_pb2.InspectResponse:
    with fetched.place() as placed:
        return inspected(placed.spec, timeout_s)


class EvaluationTooLong(DeadlineExpired):
    """The evaluation has not ended within its limit, and would not elsewhere."""

    reason = "EVALUATION_TOO_LONG"


def evaluate_for(
    held: HeldLease, config: LearnerConfig, peers: Peers, files: UserFiles
) -> pod_service_pb2.EvaluateResult:
    """The result of the lease's EvaluateWork. Its cost counts from when the lease was received.

    The same seeds give the same returns as in an evaluation of training. Raises DataCorrupted for a
    checkpoint that differs from what was committed, InvalidInput for policies that cannot act in
    the environment or together, UserCodeFailed, and EvaluationTooLong."""
    lease, received_at, work = held.lease, held.received_at, held.lease.evaluate
    if not work.policies or not work.seeds:
        raise InvalidInput(
            "an evaluation needs at least one policy and one seed", reason="NOTHING_TO_EVALUATE"
        )
    if config.layout == "fused":
        require_user_code_allowed(work.environment, config)
    files = dataclasses.replace(files, check=_limited(files.check, received_at, _limit_s(work)))
    references = [policy.checkpoint for policy in work.policies]
    checkpoints = read_references(files.store, references, POLICY_GROUPS)
    rule = rule_of(checkpoints, work.ensemble)
    with files.fetch(environment_from_message(work.environment)) as fetched:
        start, elsewhere_s = time.monotonic(), 0.0
        if config.layout == "fused":
            result = _evaluate_here(work, checkpoints, config, fetched, files.check)
        else:
            result, elsewhere_s = _at_an_evaluator(
                work, checkpoints, config, peers, fetched, files.check
            )
        duration_s = time.monotonic() - start
    on_gpu = (
        config.layout == "fused"
        and device_for(config.device, environment_from_message(work.environment)) != "cpu"
    )
    used_s = (
        time.monotonic() - received_at
        if on_gpu
        else processor_seconds() - held.used_before + elsewhere_s
    )
    return pod_service_pb2.EvaluateResult(
        evaluation=_message(lease, result, duration_s),
        cost=seconds_to_duration(max(0.0, used_s)),
        ensemble=rule if len(checkpoints) > 1 else "",
    )


def _limited(check: Callable[[], None], since: float, limit_s: float) -> Callable[[], None]:
    def limited() -> None:
        check()
        if time.monotonic() > since + limit_s:
            raise EvaluationTooLong(f"the evaluation has not ended within {limit_s:.0f} s")

    return limited


def _limit_s(work: pod_service_pb2.EvaluateWork) -> float:
    return seconds_from_duration(work.timeout) or _EVALUATION_S


def _evaluate_here(
    work: pod_service_pb2.EvaluateWork,
    checkpoints: Sequence[Checkpoint],
    config: LearnerConfig,
    fetched: FetchedFiles,
    check: Callable[[], None],
) -> EvaluationResult:
    spec = environment_from_message(work.environment)
    device = evaluation_device(spec, device_for(config.device, spec))
    with fetched.place() as placed:
        return evaluate_checkpoints(
            checkpoints,
            placed.spec,
            work.seeds,
            rule=work.ensemble,
            device=device,
            check=check,
            evaluator=work.evaluator,
        )


def _at_an_evaluator(
    work: pod_service_pb2.EvaluateWork,
    checkpoints: Sequence[Checkpoint],
    config: LearnerConfig,
    peers: Peers,
    fetched: FetchedFiles,
    check: Callable[[], None],
) -> tuple[EvaluationResult, float]:
    """Evaluate at an evaluator. It has no keys of the store, so the policies are sent to it. Also
    returns its processor seconds."""
    packed = [fetched.add(pack_policy(checkpoint)) for checkpoint in checkpoints]
    request = evaluator_service_pb2.EvaluateCheckpointRequest(
        checkpoints=[
            evaluator_service_pb2.CheckpointSource(file_sha256=sha256) for sha256 in packed
        ],
        ensemble=work.ensemble,
        environment=work.environment,
        seeds=work.seeds,
        purpose=work.purpose,
        evaluator=work.evaluator or GREEDY_EPISODES,
    )
    call = EvaluatorCall(fetched, _limit_s(work) + _EVALUATION_SLACK_S, check)
    response: evaluator_service_pb2.EvaluateCheckpointResponse = answer_of_any(
        peers.evaluators, call, "EvaluateCheckpoint", request, config.peer_patience
    )
    return result_from_message(response.evaluation), seconds_from_duration(
        response.evaluation.duration
    )


def _message(
    lease: pod_service_pb2.Lease, result: EvaluationResult, duration_s: float
) -> agent_pb2.Evaluation:
    work = lease.evaluate
    message = result_to_message(result)
    message.evaluation_id, message.purpose = f"{lease.fence}-1", work.purpose
    if len(work.policies) == 1:
        (policy,) = work.policies
        message.agent, message.env_steps = policy.agent, policy.checkpoint.env_steps
        message.checkpoint.CopyFrom(policy.checkpoint)
    message.duration.CopyFrom(seconds_to_duration(duration_s))
    message.create_time.GetCurrentTime()
    return message


EvaluatorItem = evaluator_service_pb2.EvaluateOpened | evaluator_service_pb2.EvaluationAnswer
EvaluateRequest = evaluator_service_pb2.EvaluateRequest

_LOST = (Unavailable, Exhausted, DeadlineExpired)
_REOPEN_S = (0.1, 2.0)
_STREAM_POLL_S = 0.2
_LEAST_S = 0.1  # that an evaluator has for an order


class PolicyStream:
    """Policies can be sent once the evaluator has answered the opening."""

    def __init__(
        self,
        stub: EvaluatorServiceStub,
        opening: evaluator_service_pb2.OpenEvaluate,
        endpoint: Endpoint,
        *,
        inline_only: bool,
    ) -> None:
        """Opens the session, without waiting for it."""
        self._offering = CarrierOffering(endpoint, inline_only=inline_only)
        self._slots: SlotWriter | None = None
        self._encoder = TensorEncoder()
        opening.carriers.CopyFrom(self._offering.message)
        self._call: StreamCall[EvaluateRequest, EvaluatorItem] = StreamCall(
            stub.Evaluate, self._decode
        )
        self._call.send(EvaluateRequest(open=opening))

    def send(
        self, order: evaluator_service_pb2.EvaluationOrder, policy: Mapping[str, Tensor]
    ) -> None:
        """Send an order for this policy; never waits."""
        messages, chunks = self._encoder.encode(policy)
        for name, message in messages.items():
            order.tensors[name].CopyFrom(message)
        self._call.send(EvaluateRequest(order=order))
        for request in chunk_messages(EvaluateRequest, chunks):
            self._call.send(request)

    def poll(self) -> EvaluatorItem | None:
        """The next item, if one has arrived. Raises the error that ended the stream."""
        return self._call.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, at most `timeout_s`."""
        self._call.wait(timeout_s)

    def close(self) -> None:
        """End the session."""
        self._call.close()
        self._offering.close()
        if self._slots is not None:
            self._slots.close()

    def _decode(self, response: evaluator_service_pb2.EvaluateResponse) -> EvaluatorItem | None:
        """Decode a response, in the receiving thread."""
        match response.WhichOneof("message"):
            case "opened":
                self._settle(response.opened.carrier)
                return response.opened
            case "answer":
                return response.answer
            case "slot_return":
                if self._slots is None:
                    raise InvalidInput(
                        "an evaluator returned a slot of a stream without any",
                        reason="BAD_SLOT_RETURN",
                    )
                self._slots.take_back(response.slot_return)
                return None
            case "draining":
                raise Unavailable(response.draining.reason, reason="DRAINING")
            case _:
                return None

    def _settle(self, choice: tensor_pb2.CarrierChoice) -> None:
        """An evaluator always accepts tensors inline, so a failing carrier does no harm."""
        try:
            staging = self._offering.settle(choice)
        except CarrierFailed as error:
            logger.warning("%s; policies go to the evaluator inline", error.message)
            return
        logger.info("policies go to the evaluator by %s", carrier_name(choice.kind))
        if staging is not None:
            self._slots = SlotWriter(staging)
            self._encoder = TensorEncoder(slots=self._slots)


class RemoteBackend(EvaluationBackend):
    """One session with the first evaluator that answers. Lost looks are dropped; lost full
    evaluations are requested again."""

    def __init__(
        self,
        cohort: cohort_pb2.CohortSpec,
        files: FetchedFiles,
        stubs: Sequence[EvaluatorServiceStub],
        check: Callable[[], None],
        endpoint: Endpoint,
        evaluator: str = "",
    ) -> None:
        """Opens the first session. `files`: of the environment. `check` is called while waiting and
        raises to cancel. `endpoint`: the carriers for policies; `evaluator`: the evaluator's
        name."""
        _require_evaluators(stubs)
        self._evaluator = evaluator
        self._cohort, self._files, self._stubs, self._check = cohort, files, list(stubs), check
        self._delivery: BackgroundTask[None] | None = None  # to the evaluator that is asked next
        self._endpoint, self._inline_only = endpoint, False
        self._waits = Backoff(*_REOPEN_S)
        self._retry_at = 0.0
        self._opened = False
        self._orders: dict[int, EvaluationOrder] = {}
        self._spans: dict[int, Span] = {}  # of some orders
        self._parent, self._occasions = current().traceparent, Occasions()
        self._lost_looks: list[EvaluationAnswer] = []
        self._stream: PolicyStream | None = None
        self._connect()

    @property
    def ready(self) -> bool:
        return self._opened

    def submit(self, order: EvaluationOrder) -> None:
        self._orders[order.order_id] = order
        ORDERS.set(len(self._orders))
        if self._parent and (not order.screening or self._occasions.is_next()):
            self._spans[order.order_id] = span(
                "order", self._parent, sampled=True, look=order.screening
            )
        if self._opened:
            self._send(order)

    def poll(self, timeout_s: float = 0.0) -> list[EvaluationAnswer]:
        deadline = time.monotonic() + timeout_s
        while True:
            answers = self._arrived()
            remaining_s = deadline - time.monotonic()
            if answers or remaining_s <= 0:
                return answers
            self._check()
            self._wait(min(remaining_s, _STREAM_POLL_S))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._opened, self.evaluator_count = False, 0
        ORDERS.set(0)

    def _connect(self) -> None:
        opening = evaluator_service_pb2.OpenEvaluate(
            build=own_build(),
            cohort=self._cohort,
            traceparent=self._parent,
            evaluator=self._evaluator,
        )
        self._stream = PolicyStream(
            self._stubs[0], opening, self._endpoint, inline_only=self._inline_only
        )

    def _arrived(self) -> list[EvaluationAnswer]:
        """The arrived items, without waiting."""
        answers, self._lost_looks = self._lost_looks, []
        try:
            if self._delivery is not None:
                if not self._delivery.done:
                    return answers
                delivery, self._delivery = self._delivery, None
                delivery.result()
                self._connect()
            if self._stream is None:
                if time.monotonic() < self._retry_at:
                    return answers
                self._connect()
            while self._stream is not None and (item := self._stream.poll()) is not None:
                answers += self._take(item)
        except PreconditionFailed as error:
            if error.reason == CARRIER_FAILED and not self._inline_only:
                logger.warning("%s; policies go to the evaluator inline", error.message)
                self._inline_only = True
                self.close()
                self._connect()
                return answers
            if not wants_files(error):
                raise
            self.close()
            self._delivery = self._files.deliver(
                self._stubs[0].PutFile, evaluator_service_pb2.PutFileRequest
            )
        except _LOST as error:
            self._lose(error)
            answers += self._lost_looks
            self._lost_looks = []
        return answers

    def _wait(self, timeout_s: float) -> None:
        """Wait until an item arrives, which `_arrived` then returns."""
        if self._delivery is not None:
            self._delivery.wait(timeout_s)
        elif self._stream is None:
            time.sleep(min(timeout_s, max(self._retry_at - time.monotonic(), 0.0)))
        else:
            self._stream.wait(timeout_s)

    def _take(self, item: EvaluatorItem) -> list[EvaluationAnswer]:
        if isinstance(item, evaluator_service_pb2.EvaluateOpened):
            self._opened, self.evaluator_count = True, 1
            self._waits.reset()
            for order in self._orders.values():
                self._send(order)
            return []
        if self._orders.pop(item.order_id, None) is None:
            return []
        self._spans.pop(item.order_id, NO_SPAN).end()
        ORDERS.set(len(self._orders))
        results = tuple(result_from_message(evaluation) for evaluation in item.evaluations)
        duration_s = max(
            (seconds_from_duration(one.duration) for one in item.evaluations), default=0.0
        )
        return [EvaluationAnswer(item.order_id, results, duration_s)]

    def _lose(self, error: PodracerError) -> None:
        logger.warning("the evaluator is lost: %s", error.message)
        self.close()
        self._stubs.append(self._stubs.pop(0))
        self._retry_at = time.monotonic() + next(self._waits)
        for order_id in [order_id for order_id, order in self._orders.items() if order.screening]:
            del self._orders[order_id]
            self._spans.pop(order_id, NO_SPAN).end(error.reason)
            self._lost_looks.append(EvaluationAnswer(order_id, (), 0.0))

    def _send(self, order: EvaluationOrder) -> None:
        if self._stream is None:
            return
        looking = agent_pb2.EVALUATION_PURPOSE_PROGRESS
        message = evaluator_service_pb2.EvaluationOrder(
            order_id=order.order_id,
            agents=[self._cohort.members[member].name for member in order.members],
            purpose=looking if order.screening else agent_pb2.EVALUATION_PURPOSE_CANDIDATE,
            seeds=order.seeds,
            first_episodes=order.first_episodes,
            traceparent=self._spans.get(order.order_id, NO_SPAN).traceparent,
        )
        if order.admission_score is not None:
            message.admission_score = order.admission_score
        if order.required_score is not None:
            message.required_score = order.required_score
        if (left_s := self.left_s()) < math.inf:
            message.timeout.CopyFrom(seconds_to_duration(max(_LEAST_S, left_s)))
        self._stream.send(message, order.actor.state())
