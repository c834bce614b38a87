"""Acting with the policies of a policy server; no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from podracer.common.v1 import file_pb2, tensor_pb2
from podracer.policy.v1 import policy_service_pb2, policy_service_pb2_grpc
from podracer_client.servers import (
    TLS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    token_source,
)
from podracer_core.catalogue import named_values
from podracer_core.errors import InvalidInput
from podracer_platform.rpc import ChannelOptions, TlsFolder, open_channel

Observation = ArrayLike | Mapping[Any, Any] | tuple[Any, ...]

_SERVICE = "/podracer.policy.v1.PolicyService/"
_IDEMPOTENT = tuple(
    _SERVICE + method for method in ("Act", "ListPolicies", "GetPolicy", "UnloadPolicy")
)
_CHUNK_BYTES = 1 << 20
_LOAD_TIMEOUT_S = 300.0

_DTYPES: dict[np.dtype[Any], tensor_pb2.DataType.ValueType] = {
    np.dtype(np.float32): tensor_pb2.DATA_TYPE_FLOAT32,
    np.dtype(np.float64): tensor_pb2.DATA_TYPE_FLOAT64,
    np.dtype(np.uint8): tensor_pb2.DATA_TYPE_UINT8,
    np.dtype(np.int64): tensor_pb2.DATA_TYPE_INT64,
    np.dtype(np.bool_): tensor_pb2.DATA_TYPE_BOOL,
}
_NUMPY_DTYPES: dict[int, np.dtype[Any]] = {number: dtype for dtype, number in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """Actions [B, …action], or […action] for a single observation, and the policy that acted."""

    actions: NDArray[Any]
    policy: str
    version: str


class PolicyClient:
    """A client of a policy server: `PolicyClient("127.0.0.1:7710",
    token_file="…").act(observation)`.

    Every method raises a PodracerError if the server refuses. A call is retried a few times if the
    server is unreachable. Thread-safe."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        token_file: str | Path | None = None,
        tls: str | Path | None = None,
        allow_insecure: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        """Connects at the first call. Defaults come from PODRACER_TOKEN, PODRACER_TOKEN_FILE,
        PODRACER_TLS.

        Raises InvalidInput for a bad address, one that requires TLS, or a missing or unreadable
        token."""
        source = token_source(token, token_file)
        source = source or token_source(
            os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
        )
        if source is None:
            variables = f"{TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}"
            message = f"no token for {address}: give token or token_file, or set {variables}"
            raise InvalidInput(message, reason="NO_TOKEN")
        folder = tls or os.environ.get(TLS_VARIABLE)
        options = ChannelOptions(
            idempotent_methods=_IDEMPOTENT,
            allow_insecure=allow_insecure,
            tls=TlsFolder(Path(folder)) if folder else None,
            server="policy",
            timeout_s=timeout_s,
        )
        self._channel = open_channel(address, source, options)
        self.policy_service = policy_service_pb2_grpc.PolicyServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls in progress and close the channel."""
        self._channel.close()

    def act(
        self,
        observation: Observation,
        *,
        policy: str = "",
        version: str = "",
        action_mask: ArrayLike | None = None,
        timeout_s: float | None = None,
    ) -> NDArray[Any]:
        """Greedy actions: observation […obs] -> […action], a batch [B, …obs] -> [B, …action].

        observation   an array, or nested lists of numbers; images as arrays of uint8. A dict or a
                      tuple is taken as the environment gives it; each of its parts may have an axis
                      for a batch in front
        policy        unset: the only served one; `version` unset: the current one
        action_mask   the allowed choices, [n] or [B, n]
        """
        return self.answer(
            observation,
            policy=policy,
            version=version,
            action_mask=action_mask,
            timeout_s=timeout_s,
        ).actions

    def answer(
        self,
        observation: Observation,
        *,
        policy: str = "",
        version: str = "",
        action_mask: ArrayLike | None = None,
        timeout_s: float | None = None,
    ) -> PolicyAnswer:
        """Like `act`, with the policy and version that acted."""
        request = policy_service_pb2.ActRequest(policy=policy, version=version)
        if isinstance(observation, Mapping | tuple):
            for name, value in named_values(observation):
                request.parts[name].CopyFrom(_message(name, value))
        else:
            request.observations.CopyFrom(_message("observation", observation))
        if action_mask is not None:
            request.action_masks.CopyFrom(
                _message("action_mask", np.asarray(action_mask, dtype=np.bool_))
            )
        response = self.policy_service.Act(request, timeout=timeout_s)
        return PolicyAnswer(_array(response.actions), response.policy, response.version)

    def policies(self) -> list[policy_service_pb2.Policy]:
        """The served policies by name."""
        return list(
            self.policy_service.ListPolicies(policy_service_pb2.ListPoliciesRequest()).policies
        )

    def policy(self, name: str = "") -> policy_service_pb2.Policy:
        """A served policy. Raises NotFound."""
        return self.policy_service.GetPolicy(policy_service_pb2.GetPolicyRequest(name=name)).policy

    def load(
        self,
        name: str,
        version: str,
        checkpoints: Sequence[bytes],
        *,
        rule: str = "",
        source: str = "",
    ) -> policy_service_pb2.Policy:
        """Serve packed checkpoints (`podracer_core.checkpoint.pack_policy`), best first. Needs the
        role control."""
        headers = [
            file_pb2.FileHeader(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
            for data in checkpoints
        ]
        header = policy_service_pb2.LoadPolicyHeader(
            name=name, version=version, checkpoints=headers, ensemble=rule, source=source
        )

        def requests() -> Iterator[policy_service_pb2.LoadPolicyRequest]:
            yield policy_service_pb2.LoadPolicyRequest(header=header)
            for data in checkpoints:
                for offset in range(0, len(data), _CHUNK_BYTES):
                    yield policy_service_pb2.LoadPolicyRequest(
                        data=data[offset : offset + _CHUNK_BYTES]
                    )

        return self.policy_service.LoadPolicy(requests(), timeout=_LOAD_TIMEOUT_S).policy

    def unload(self, name: str) -> None:
        """Stop serving a policy. Needs the role control. Raises NotFound."""
        self.policy_service.UnloadPolicy(policy_service_pb2.UnloadPolicyRequest(name=name))


def _message(field: str, values: ArrayLike) -> tensor_pb2.Tensor:
    """An array as a message. Raises InvalidInput unless it is an array of numbers."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(
            f"{field}: expected an array or nested lists of equal lengths: {error}"
        ) from error
    if array.dtype not in _DTYPES or array.dtype == np.int64:
        if array.dtype.kind not in "iuf":
            raise InvalidInput(f"{field}: expected numbers, got an array of {array.dtype}")
        array = array.astype(np.float64)
    return tensor_pb2.Tensor(dtype=_DTYPES[array.dtype], shape=array.shape, inline=array.tobytes())


def _array(message: tensor_pb2.Tensor) -> NDArray[Any]:
    """A new, writable array."""
    flat: NDArray[Any] = np.frombuffer(message.inline, _NUMPY_DTYPES[message.dtype])
    return flat.reshape(tuple(message.shape)).copy()
