"""The policy server's process: one asyncio loop with the server, and threads for long
operations."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc
import torch

from podracer.policy.v1.policy_service_pb2_grpc import add_PolicyServiceServicer_to_server
from podracer_core.config import Seconds
from podracer_core.errors import InvalidInput
from podracer_platform.rpc.aio_server import AioRpcServer, create_aio_server
from podracer_platform.rpc.auth import Authorizer, methods_of
from podracer_platform.rpc.binding import RequestBytes
from podracer_platform.rpc.channel import open_channel
from podracer_platform.rpc.limits import MESSAGE_BYTES
from podracer_platform.rpc.tokens import FileToken, Role, TokenFiles
from podracer_platform.service.process import ServiceSettings, announce
from podracer_policy.batching import Batcher, ServedPolicies
from podracer_policy.messages import most_bytes
from podracer_policy.service import SERVICE, PolicyService
from podracer_policy.sources import Alias, Follower, parse_sources

_PLACES = 1024
"""Of a token: requests to act wait together for one call of the network."""

_TURN_S = 0.0001
"""How long another thread may run in Python while the loop waits: one loads a policy, and each of
the twenty operations of a small network waits for it anew."""


@dataclass(frozen=True)
class PolicyConfig(ServiceSettings):
    """
    policies         what to serve from the start, each NAME=SOURCE: a checkpoint's folder, or
                     projects/p/jobs/j@alias, which is followed. Folders of one name act together,
                     the best first. Empty: LoadPolicy brings them
    rule             how those act together, mean or vote; empty: by action space
    orchestrator     address of the server with the checkpoints of followed aliases
    leaderboard      address of the server with the followed aliases
    client_token     file with the token to show to these two; unset: the file `client` in the
                     folder of tokens
    follow_interval  how often to check where an alias points
    """

    policies: tuple[str, ...] = ()
    rule: str = ""
    orchestrator: str = ""
    leaderboard: str = ""
    client_token: Path | None = None
    follow_interval: Seconds = 5.0


async def create_policy_server(
    config: PolicyConfig, policies: ServedPolicies, batcher: Batcher
) -> AioRpcServer:
    """A bound server of what is served."""
    service = PolicyService(policies, batcher)
    acts: RequestBytes = dict.fromkeys(
        (f"{SERVICE}/Act", f"{SERVICE}/ActStream"), partial(most_bytes, policies)
    )
    server = await create_aio_server(
        config.listen,
        [partial(add_PolicyServiceServicer_to_server, service)],
        Authorizer(methods_of("policy"), TokenFiles(config.tokens)),
        replace(
            config.server_options(), request_bytes=acts, places=_PLACES, large_bytes=MESSAGE_BYTES
        ),
    )
    server.on_drain(service.drain)
    return server


def serve(config: PolicyConfig) -> int:
    """Serve until SIGTERM or SIGINT. Only from the main thread."""
    # of small networks more threads only wait for one another
    torch.set_num_threads(config.threads or 1)
    sys.setswitchinterval(_TURN_S)
    asyncio.run(_serve(config))
    return 0


async def _serve(config: PolicyConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folders, aliases = parse_sources(config.policies)
    policies, batcher = ServedPolicies(), Batcher()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(batcher.close)
        followers = _followers(config, aliases, policies, stack)
        server = await create_policy_server(config, policies, batcher)
        for named in folders:
            policies.put(await asyncio.to_thread(named.load, config.rule))
        warm = [_repeat(follower.look, config.follow_interval, stop) for follower in followers]
        if not all(await asyncio.gather(*warm)):
            await server.drain(0)
            return
        gc.collect()
        # what stays is looked through never again: that would take longer than most answers
        gc.freeze()
        async with server:
            following = [
                asyncio.create_task(follower.run(config.follow_interval)) for follower in followers
            ]
            announce(server.address)
            await stop.wait()
            for task in following:
                task.cancel()


async def _repeat(
    look: Callable[[], Awaitable[bool]], interval_s: float, stop: asyncio.Event
) -> bool:
    """Repeat until it succeeds; False if `stop` is set before. The server is not ready until
    then."""
    while not stop.is_set():
        if await look():
            return True
        try:
            await asyncio.wait_for(stop.wait(), interval_s)
        except TimeoutError:
            continue
    return False


def _followers(
    config: PolicyConfig, aliases: list[Alias], policies: ServedPolicies, stack: AsyncExitStack
) -> list[Follower]:
    """The followers of aliases. Raises InvalidInput if their servers' addresses are unset."""
    if not aliases:
        return []
    for field, value in (
        ("PODRACER_LEADERBOARD", config.leaderboard),
        ("PODRACER_ORCHESTRATOR", config.orchestrator),
    ):
        if not value:
            raise InvalidInput.of(
                field, f"is not set; expected its address, to follow {aliases[0].source}"
            )
    token = FileToken(config.client_token or config.tokens / Role.CLIENT)

    def opened(address: str, server: str) -> grpc.Channel:
        return stack.enter_context(open_channel(address, token, config.channel_options(server)))

    leaderboard = opened(config.leaderboard, "leaderboard")
    orchestrator = opened(config.orchestrator, "orchestrator")
    return [Follower(alias, policies, leaderboard, orchestrator) for alias in aliases]
