"""The start of every service process: settings, logs, its parent, and the error if it cannot start;
its telemetry, off by default."""

from __future__ import annotations

import functools
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import NoReturn, TypeVar

from podracer.common.v1 import cohort_pb2
from podracer_core.config import ByteSize, Seconds
from podracer_core.errors import InvalidInput, PodracerError, PreconditionFailed
from podracer_platform.attachments import FileCache
from podracer_platform.rpc import ChannelOptions, ServerOptions, TlsFolder, limits, write_audit_log
from podracer_platform.service.lifetime import exit_with_parent_if_asked, protect_memory
from podracer_platform.settings import load_settings
from podracer_platform.shared_folder import SharedFolder
from podracer_platform.telemetry import (
    Reading,
    SpanFiles,
    SpanSink,
    configure_logging,
    metrics,
    record_spans,
)

PROTOCOL = 1
"""The version of the protocol: one more after every change that matters to a peer."""


REVISION_VARIABLE = "PODRACER_REVISION"
"""Set in our images to the hash of the commit they were built from."""

_REVISION_LENGTH = 12


@functools.cache
def _version() -> str:
    return metadata.version("podracer-core")


def own_build() -> cohort_pb2.BuildInfo:
    """This process's build."""
    revision = os.environ.get(REVISION_VARIABLE, "")[:_REVISION_LENGTH]
    return cohort_pb2.BuildInfo(version=_version(), git_commit=revision, protocol=PROTOCOL)


def describe_build() -> str:
    """The build as text: `0.1.0 (3f2a9c1d0b7e), protocol 1`."""
    own = own_build()
    revision = f" ({own.git_commit})" if own.git_commit else ""
    return f"{own.version}{revision}, protocol {own.protocol}"


def require_same_build(peer: cohort_pb2.BuildInfo) -> None:
    """All processes of a pod have the same build. Raises PreconditionFailed (BUILD_MISMATCH) for
    any other build."""
    own = own_build()
    if (peer.version, peer.protocol) != (own.version, own.protocol):
        raise PreconditionFailed(
            f"this is build {own.version} (protocol {own.protocol}), the peer is "
            f"{peer.version or 'unknown'} (protocol {peer.protocol}); the services of one pod must "
            "be of one build",
            reason="BUILD_MISMATCH",
            own=own.version,
            peer=peer.version,
        )


def is_compatible(peer: cohort_pb2.BuildInfo) -> bool:
    """Whether control plane and pod can work together: the same major version, at most one minor
    version apart."""
    own_parts, peer_parts = _parts(_version()), _parts(peer.version)
    return (
        peer_parts is not None
        and own_parts is not None
        and (own_parts[0] == peer_parts[0] and abs(own_parts[1] - peer_parts[1]) <= 1)
    )


def _parts(version: str) -> tuple[int, int] | None:
    numbers = version.split(".")
    if len(numbers) < 2 or not (numbers[0].isdecimal() and numbers[1].isdecimal()):
        return None
    return int(numbers[0]), int(numbers[1])


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """The destinations of telemetry, besides the collector of the environment variables.

    metrics_listen  address at which Prometheus fetches metrics; empty: none
    trace_dir       folder for files of spans; None: none
    trace_bytes     the most that folder may hold
    """

    metrics_listen: str = ""
    trace_dir: Path | None = None
    trace_bytes: int = 256 << 20


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


@dataclass(frozen=True)
class PodSettings(ServiceSettings):
    """
    cache_dir   folder for users' code and data sets, created if it is missing; several processes
                may share it. Unset: one of this user's in the folder for temporary files
    cache_size  the most it may hold; a single data set may take 2 GiB
    shm_dir     folder in memory through which services of one machine hand tensors to each other,
                the same for all of them. Unset: /dev/shm where there is one. Without it tensors
                travel inside the messages
    advertise   address at which learners call this one. Unset: where it listens. A learner's
                wildcard address (0.0.0.0) becomes its host's name; a worker or an evaluator that
                listens there may be called by any address of its machine
    """

    cache_dir: Path | None = None
    cache_size: ByteSize = 4 << 30
    shm_dir: Path | None = None
    advertise: str = ""

    def file_cache(self) -> FileCache:
        """The cache; its folder is created at first use."""
        folder = self.cache_dir or Path(tempfile.gettempdir(), f"podracer_cache-{os.geteuid()}")
        return FileCache(folder, self.cache_size)

    def shared_folder(self) -> SharedFolder:
        """The folder for tensors, without the files of processes that have ended."""
        folder = SharedFolder(self.shm_dir)
        folder.sweep()
        return folder


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


logger = logging.getLogger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


_SIGNAL_ENDPOINT = "OTEL_EXPORTER_OTLP_{}_ENDPOINT"


_END_S = 1.0
"""How long a process that ends waits for a collector."""


@contextmanager
def telemetry(
    service: str, options: TelemetryOptions, environment: Mapping[str, str] | None = None
) -> Iterator[str | None]:
    """Send the spans and metrics of this process where `options` and the variables OTEL_* say,
    until the block ends.

    Yields the URL of the metrics for Prometheus, or nothing. Raises InvalidInput for a folder or an
    address that cannot be used, and for a protocol other than gRPC."""
    environment = os.environ if environment is None else environment
    ends: list[Callable[[float], None]] = []
    try:
        yield _start(service, options, environment, ends)
    finally:
        record_spans([])
        for end in ends:
            end(_END_S)


def _start(
    service: str,
    options: TelemetryOptions,
    environment: Mapping[str, str],
    ends: list[Callable[[float], None]],
) -> str | None:
    otlp_spans, otlp_metrics = (
        _wants_otlp(environment, signal) for signal in ("TRACES", "METRICS")
    )
    sinks: list[SpanSink] = []
    is_sampled: Callable[[str], bool] = lambda trace_id: True  # noqa: E731
    url = None
    if otlp_spans or otlp_metrics or options.metrics_listen:
        try:
            from podracer_platform.service import otlp  # late: most processes need none of it
        except ImportError as error:
            raise InvalidInput(
                "telemetry is enabled, but not installed: "
                f"pip install 'podracer-platform[telemetry]' ({error})",
                reason="NO_TELEMETRY",
            ) from error
        resource = otlp.resource_of(service, {"service.version": own_build().version})
        if otlp_metrics or options.metrics_listen:
            watch_process()
            watch_gpus()
            export = otlp.MetricExport(
                resource, otlp=otlp_metrics, prometheus_listen=options.metrics_listen
            )
            ends.append(export.close)
            url = export.address
            if url is not None:
                logger.info("metrics at %s", url)
        if otlp_spans:
            spans = otlp.OtlpSpans(resource)
            is_sampled = spans.is_sampled
            sinks.append(spans)
    if options.trace_dir is not None:
        sinks.append(SpanFiles(options.trace_dir, service, options.trace_bytes))
    ends += [sink.close for sink in sinks]
    record_spans(sinks, is_sampled)
    return url


def _wants_otlp(environment: Mapping[str, str], signal: str) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return False
    if not (environment.get(_ENDPOINT) or environment.get(_SIGNAL_ENDPOINT.format(signal))):
        return False
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environment.get(name, "grpc")) != "grpc":
            raise InvalidInput(
                f"{name} is {protocol!r}; expected grpc, or nothing", reason="INVALID_SETTING"
            )
    return True


_STATM = Path("/proc/self/statm")


def watch_process() -> None:
    """Measure the processor time and memory of this process."""
    metrics.CPU.watch(_cpu_times)
    metrics.MEMORY.watch(_memory)


def watch_gpus() -> None:
    """Measure the GPUs of this machine, if it has any and NVML is installed."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return  # no driver, so no GPU

    def utilization() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, {"gpu": str(index)}

    def memory() -> Iterable[Reading]:
        for index, handle in enumerate(handles):
            yield pynvml.nvmlDeviceGetMemoryInfo(handle).used, {"gpu": str(index)}

    metrics.GPU_USE.watch(utilization)
    metrics.GPU_MEMORY.watch(memory)


def _cpu_times() -> Iterable[Reading]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [(used.ru_utime, {"state": "user"}), (used.ru_stime, {"state": "system"})]


def _memory() -> Iterable[Reading]:
    try:
        resident = int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most that it has ever been
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [(float(resident), {})]
