"""Random requests to a control service that runs in this process, and what must be true of each
answer."""

from __future__ import annotations

import os
import random
from typing import Any

import grpc
import psutil
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from podracer_core.errors import DeadlineExpired, PodracerError
from podracer_platform.rpc.bounds import PAGE_BYTES
from podracer_platform.rpc.limits import SPEC_BYTES
from support.random_messages import SURROGATE, RandomMessages, bounded

COUNT = int(os.environ.get("PODRACER_FUZZ", "300"))
DATABASES = ("sqlite", "postgresql")
MOST_ANSWER_BYTES = PAGE_BYTES + 2 * SPEC_BYTES + 100_000
"""A page whose last item is a job in full."""
MOST_GROWTH_BYTES = 256 << 20


class Requests:
    """`waits`: methods that may take longer than this waits; `texts`: see RandomMessages."""

    def __init__(self, chance: random.Random, waits: tuple[str, ...]) -> None:
        self.chance, self._waits = chance, waits
        self._memory_bytes = psutil.Process().memory_info().rss

    def make(self, method: Any, texts: list[str]) -> Any:
        request = RandomMessages(self.chance, texts).fill(GetMessageClass(method.input_type)())
        return bounded(request) if self.chance.random() < 0.8 else request

    async def send(self, channel: Any, method: Any, request: Message, metadata: Any = None) -> Any:
        """The answer of a unary call, None for a refusal.

        Fails unless the server answers within its bounds, or refuses for a reason that is the
        caller's."""
        raw, timeout_s = self._raw(request), 2.0 if method.name in self._waits else 30.0
        kinds = [
            "stream" if streams else "unary"
            for streams in (method.client_streaming, method.server_streaming)
        ]
        call = getattr(channel, "_".join(kinds))(
            f"/{method.containing_service.full_name}/{method.name}",
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        what = f"{method.name} of {request}"[:5000]
        try:
            answer = call(
                iter([raw]) if method.client_streaming else raw,
                metadata=metadata,
                timeout=timeout_s,
            )
            if method.server_streaming:
                async for each in answer:
                    assert each.ByteSize() <= MOST_ANSWER_BYTES, what
                    break
                answer.cancel()
            else:
                found = await answer
                assert found.ByteSize() <= MOST_ANSWER_BYTES, what
                return found
        except DeadlineExpired:
            assert method.name in self._waits, f"hangs: {what}"
        except PodracerError as error:
            assert type(error) is not PodracerError, f"{error}: {what}"
            assert error.message, what
        except grpc.RpcError as error:
            raise AssertionError(f"{error}: {what}") from error
        return None

    def _raw(self, request: Message) -> bytes:
        """With lone surrogates, which no message of this side can have, and sometimes with a byte
        that is wrong."""
        raw = bytearray(request.SerializeToString().replace(SURROGATE.encode(), b"\xed\xa0\x80"))
        if raw and self.chance.random() < 0.05:
            raw[self.chance.randrange(len(raw))] ^= 1 << self.chance.randrange(8)
        return bytes(raw)

    def assert_bounded(self) -> None:
        """This process has no more memory than before, or little."""
        growth = psutil.Process().memory_info().rss - self._memory_bytes
        assert growth < MOST_GROWTH_BYTES, f"{growth / 2**20:.0f} MiB"
