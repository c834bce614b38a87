"""A server of every service that answers by chance, often in part as an honest one would."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

from podracer_platform.rpc.status import DETAILS_KEY
from support.random_messages import RandomMessages

MOST_CALLS = 300


class Liar(grpc.GenericRpcHandler):
    """`texts`: some that mean something to its callers."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self.begin(random.Random(0))

    def begin(self, chance: random.Random) -> None:
        """From now on, answer by this chance."""
        self.chance, self.messages, self.calls = chance, RandomMessages(chance, self._texts), 0
        self.honesty, self.endless = chance.choice((0.0, 0.5, 0.9, 0.97)), chance.random() < 0.1

    @contextmanager
    def serving(self, address: str = "127.0.0.1:0") -> Iterator[str]:
        """Serve; the address."""
        server = grpc.server(ThreadPoolExecutor(32), handlers=[self])
        port = server.add_insecure_port(address)
        server.start()
        yield address.replace(":0", f":{port}")
        server.stop(0).wait()

    def service(self, handler_call_details: Any) -> Any:
        service, name = handler_call_details.method.strip("/").split("/")
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]

        def answer(request: Any, context: Any) -> Any:
            self.count(method, context)
            return self.answer(method)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            self.count(method, context)
            yield from self.parts(method, request, context)

        kinds = [
            (each and "stream") or "unary"
            for each in (method.client_streaming, method.server_streaming)
        ]
        make = getattr(grpc, f"{'_'.join(kinds)}_rpc_method_handler")
        return make(
            stream if method.server_streaming else answer,
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def count(self, method: Any, context: Any) -> None:
        """Another call, which may be refused."""
        self.calls += 1
        if self.chance.random() < 0.05 * (1 - self.honesty) or self.calls > 2 * MOST_CALLS:
            self.refuse(context, self.chance.choice(list(grpc.StatusCode)[1:]))

    def refuse(self, context: Any, code: grpc.StatusCode) -> None:
        """End the call with this code and details of any kind."""
        status = self.messages.fill(status_pb2.Status())
        status.code = self.chance.choice((code.value[0], status.code))
        for detail in status.details:
            kind = self.chance.choice(("ErrorInfo", "BadRequest", "DebugInfo", "RetryInfo", "x"))
            detail.type_url = f"type.googleapis.com/google.rpc.{kind}"
        context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()[:4000]),))
        context.abort(code, self.chance.choice(self._texts)[:1000])

    def answer(self, method: Any) -> Any:
        """What it says."""
        answer = GetMessageClass(method.output_type)()
        if self.chance.random() >= self.honesty:
            return self.messages.fill(answer)
        self.be_honest(answer)
        return answer if self.chance.random() < self.honesty else self.messages.mutate(answer)

    def be_honest(self, answer: Any) -> None:
        """Say what an honest server might, as far as it takes to get on."""

    def parts(self, method: Any, request: Any, context: Any) -> Iterator[Any]:
        """What it says in a stream."""
        for _ in range(self.chance.choice((0, 1, 3))):
            yield self.answer(method)
