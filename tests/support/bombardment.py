"""Random calls to a service that runs in a process of its own, and what must be true of that
process afterwards."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from podracer_core.errors import DeadlineExpired, PodracerError, Unavailable
from podracer_platform.rpc.streams import StreamCall
from support.random_messages import RandomMessages

ANSWER_S = 30.0
"""Within which every call is answered, or says something, on a busy machine, too."""
SLOW_S = 5.0
"""After which a call is given up that may take any time."""
QUIET_S = 0.1
"""A stream on which nothing more has come for so long waits for its client, who then hangs up."""
END_S = 20.0
"""Within which a service has given back what a caller had who has gone."""
MOST_BYTES = 1 << 30
"""Of memory that a process may ever have used; a quarter of it is torch."""

Turn = Sequence[Message]
"""Messages that belong together: a header, and the chunks that follow it."""


@dataclass
class Target:
    """A service under fire.

    texts    words that mean something to it
    valid    by method, what may begin a call, and what may follow in a stream
    slow     methods that may take any time
    is_idle  whether it holds nothing of any caller's
    adapted  a stream's message as it has to be after the stream's first answer; None before there
             is one
    """

    stub: Any
    service: Any
    texts: Sequence[str]
    valid: Mapping[str, tuple[Turn, Sequence[Turn]]]
    slow: Sequence[str] = ()
    is_idle: Callable[[], bool] = lambda: True
    adapted: Callable[[Any, Any], Any] = lambda message, answer: message

    def bombard(self, count: int, chance: random.Random) -> None:
        """So many calls. Fails where one meets a mistake of the service's own, is not answered, or
        leaves something."""
        messages = RandomMessages(chance, self.texts)
        methods = [method for method in self.service.methods for _ in range(_weight(method))]
        for number in range(count):
            method = chance.choice(methods)
            said, hangs_up = list(self._said(method, messages, chance)), chance.random() < 0.3
            what = f"number {number}, {method.name} of {said}"[:5000]
            try:
                self._call(method, said, hangs_up)
            except DeadlineExpired as error:
                assert method.name in self.slow, f"{error}: {what}"
            except PodracerError as error:
                assert type(error) is not PodracerError, f"{error}: {what}"
            until(self.is_idle, what)

    def _said(
        self, method: Any, messages: RandomMessages, chance: random.Random
    ) -> Iterator[Message]:
        """Valid messages, some of them changed, and a few that are none."""
        beginnings, later = self.valid.get(method.name, ((), ()))
        turns = [
            [chance.choice(beginnings) if beginnings else GetMessageClass(method.input_type)()]
        ]
        turns += chance.choices(later, k=chance.choice((0, 1, 2, 3, 6))) if later else []
        share = 0.6
        for message in itertools.chain.from_iterable(turns):
            copy, luck = type(message)(), chance.random()
            if luck < 0.05:
                yield messages.fill(copy)
            else:
                copy.CopyFrom(message)
                yield messages.mutate(copy) if luck < share else copy
            share = 0.3

    def _call(self, method: Any, said: Sequence[Message], hangs_up: bool) -> None:
        """Raises what ended the call, unless that was good order or this side."""
        function = getattr(self.stub, method.name)
        if not (method.client_streaming and method.server_streaming):
            timeout_s = SLOW_S if method.name in self.slow else ANSWER_S
            answer = function(iter(said) if method.client_streaming else said[0], timeout=timeout_s)
            if method.server_streaming:
                list(answer)
            return
        said = [self.adapted(message, None) for message in said]
        at_once = said if hangs_up else said[:1]
        stream = open_stream(function, at_once, hangs_up)
        try:
            assert stream.wait(ANSWER_S), "the other side says nothing"
            first = stream.receive(0.0)
            for message in said[len(at_once) :]:
                stream.send(self.adapted(message, first))
            while stream.wait(QUIET_S):
                stream.receive(0.0)
        except Unavailable as error:
            if error.message != "the other side has ended the stream":
                raise
        finally:
            stream.close()


def open_stream(
    function: Any, said: Sequence[Message], hangs_up: bool = False
) -> StreamCall[Any, Any]:
    """A call that begins with these messages, and with these ends where the client `hangs_up`."""
    return StreamCall(
        lambda more: function(itertools.chain(said, () if hangs_up else more)),
        lambda answer: answer,
    )


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Watch:
    """What a process of a lab must not have done after it has talked to strangers."""

    def __init__(self, lab: Any, name: str, *owned: str) -> None:
        """`owned`: where below the lab's folder it may write, beside its cache."""
        self._lab, self._name = lab, name
        self._owned = tuple(
            str(lab.folder / each) for each in (*owned, f"{name}.log", f"{name}.cache")
        )
        self._before = self._files()

    def assert_well(self) -> None:
        """It lives, and has no more memory or files than it needs; see `assert_no_mistake`."""
        process, log = self._lab.processes[self._name], self._lab.log(self._name)
        assert process.poll() is None, log[-3000:]
        self.assert_no_mistake()
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = next(
            int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
        )
        assert peak < MOST_BYTES, f"{peak / 2**20:.0f} MiB"
        assert not [path.name for path in self._lab.shm.iterdir() if "segment" in path.name]

    def assert_no_mistake(self) -> None:
        """It has met none of its own in any thread, and has written nothing but what is its own."""
        log = self._lab.log(self._name)
        assert "unexpected error" not in log, log[-3000:]
        assert "Traceback" not in log, log[-3000:]
        assert (after := self._files()) == self._before, set(after.items()) ^ set(
            self._before.items()
        )

    def _files(self) -> dict[str, tuple[int, int]]:
        """Size and time of all files but its own, by path."""
        paths = (
            path for path in self._lab.folder.rglob("*") if not str(path).startswith(self._owned)
        )
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in paths
            if path.is_file()
        }


def _weight(method: Any) -> int:
    """How often a method is called: the more the more can go wrong."""
    return (
        8
        if method.client_streaming and method.server_streaming
        else 2
        if method.input_type.fields
        else 1
    )
