"""The start of every service process: settings, logs, its parent, and the error if it cannot
start."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from podracer_core.config import ByteSize, Seconds
from podracer_core.errors import InvalidInput, PodracerError
from podracer_platform.rpc import limits
from podracer_platform.rpc.audit import write_audit_log
from podracer_platform.rpc.binding import ServerOptions
from podracer_platform.rpc.channel import ChannelOptions
from podracer_platform.rpc.tls import TlsFolder
from podracer_platform.service.build import describe_build
from podracer_platform.service.lifetime import exit_with_parent_if_asked, protect_memory
from podracer_platform.service.telemetry import TelemetryOptions, telemetry
from podracer_platform.settings import load_settings
from podracer_platform.telemetry.logging import configure_logging


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of every service, from PODRACER_<NAME>.

    listen          address to serve at; port 0 takes a free one
    tokens          folder with the token files `client`, `pod`, `control`
    threads         number of threads of torch; unset: torch's default
    tls             folder with ca.pem, cert.pem and key.pem: serve and call with TLS, only with
                    peers that have a certificate of the same authority (unix sockets excepted)
    allow_insecure  without TLS, serve and call other machines in plain text
    health_listen   address of a second port, in plain text, for health checks only: probes have no
                    token and no certificate. Unset: none
    metrics_listen  address at which Prometheus fetches metrics, over plain HTTP. Unset: none
    trace_dir       folder for files of spans, which `podracer trace` reads. Unset: none are written
    trace_size      the most that folder may hold
    audit_log       file to which each act of a client or an operator is written (docs/access.md).
                    Unset: stderr
    """

    tokens: Path
    listen: str = "127.0.0.1:0"
    log_level: str = "INFO"
    log_json: bool = False
    threads: int | None = None
    tls: Path | None = None
    allow_insecure: bool = False
    health_listen: str = ""
    metrics_listen: str = ""
    trace_dir: Path | None = None
    trace_size: ByteSize = 256 << 20
    audit_log: Path | None = None

    def server_options(self) -> ServerOptions:
        """The options of this process's server. Raises InvalidInput if TLS is set and its files do
        not exist."""
        return ServerOptions(
            allow_insecure=self.allow_insecure,
            tls=self._tls_folder(),
            health=self.health_listen,
        )

    def telemetry_options(self) -> TelemetryOptions:
        """The options of this process's telemetry."""
        return TelemetryOptions(self.metrics_listen, self.trace_dir, self.trace_size)

    def channel_options(self, server: str) -> ChannelOptions:
        """The options of a channel to a `server` (orchestrator, learner…). Raises as
        `server_options`."""
        return ChannelOptions(
            allow_insecure=self.allow_insecure, tls=self._tls_folder(), server=server
        )

    def _tls_folder(self) -> TlsFolder | None:
        return None if self.tls is None else TlsFolder(self.tls)


@dataclass(frozen=True, kw_only=True)
class ControlSettings(ServiceSettings):
    """The additional settings of orchestrator and leaderboard.

    database        URL: `sqlite:////absolute/path` (the folder is created) or `postgresql://…`
    database_term   how long a process stays the active one of a PostgreSQL database without a sign
                    of life
    instance        name of this process in PostgreSQL: it takes over at once from a process of the
                    same name. In a cluster, the name of its Pod, which has the label
                    podracer.dev/active while it is the active one
    """

    database: str
    database_term: Seconds = 15.0
    instance: str = ""

    def server_options(self) -> ServerOptions:
        """See ServiceSettings; a connection has an age, and fewer calls."""
        return replace(
            super().server_options(),
            connection_age_s=limits.CONNECTION_AGE_S,
            connection_streams=limits.CONTROL_STREAMS,
        )


Settings = TypeVar("Settings", bound=ServiceSettings)


def main(name: str, settings: type[Settings], serve: Callable[[Settings], int]) -> NoReturn:
    """Call `run_service` and exit at once: Python's regular exit of a service takes 0.2 s."""
    code = run_service(name, settings, serve)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_service(name: str, settings: type[Settings], serve: Callable[[Settings], int]) -> int:
    """Read the settings, start logging and serve; returns the exit status.

    The status is 2 for a wrong setting or address, and 1 if it cannot serve for any other reason;
    one line on stderr gives the reason. With the argument `--version` it only prints its build."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"podracer_{name} {describe_build()}\n")
        return 0
    try:
        if arguments:
            raise InvalidInput(
                f"unknown argument {arguments[0]!r}: settings are variables, PODRACER_<NAME>"
            )
        exit_with_parent_if_asked()
        protect_memory()
        loaded = load_settings(settings)
        configure_logging(name, loaded.log_level, loaded.log_json)
        write_audit_log(loaded.audit_log)
        with telemetry(name, loaded.telemetry_options()):
            return serve(loaded)
    except InvalidInput as error:
        sys.stderr.write(f"podracer_{name}: {error.message}\n")
        return 2
    except PodracerError as error:
        sys.stderr.write(f"podracer_{name}: {error.message}\n")
        return 1


def announce(address: str) -> None:
    """Print the address of this process for the launcher: the only line on stdout."""
    sys.stdout.write(f"listening on {address}\n")
    sys.stdout.flush()
