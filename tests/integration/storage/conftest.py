"""Real S3 servers for all tests here, each started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.s3_server import PROGRAMS, S3Server, each_program


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], S3Server]]:
    """The running server of a program, by its name in PROGRAMS."""
    started: dict[str, S3Server] = {}

    def server_of(program: str) -> S3Server:
        if program not in started:
            started[program] = S3Server(tmp_path_factory.mktemp("s3") / program, program=program)
            started[program].start()
        return started[program]

    yield server_of
    for server in started.values():
        server.stop()


@pytest.fixture(params=each_program(*PROGRAMS))
def s3_server(request: pytest.FixtureRequest, servers: Callable[[str], S3Server]) -> S3Server:
    """Of each program."""
    return servers(request.param)
