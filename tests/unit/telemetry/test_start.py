"""Settings of telemetry: what is off, what is on, and what is wrong."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.service import TelemetryOptions, telemetry
from podracer_platform.telemetry import are_recorded, metrics, span
from support.otlp_collector import otlp_collector
from support.processes import wait_until


def test_it_is_off_by_default():
    with telemetry("learner", TelemetryOptions(), {}) as url:
        assert url is None
        assert not are_recorded()
        assert not metrics.are_wanted()


def test_files_alone_need_no_sdk(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from podracer_platform.service import TelemetryOptions, telemetry\n"
        "import podracer_platform.service.process\n"
        "from podracer_platform.telemetry import span\n"
        f"with telemetry('learner', TelemetryOptions(trace_dir=Path({str(tmp_path)!r})), {{}}):\n"
        "    span('x', begins=True).end()\n"
        "sys.exit('opentelemetry' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
    (path,) = tmp_path.iterdir()
    assert '"name":"x"' in path.read_text()


def test_spans_and_metrics_go_to_a_collector(monkeypatch):
    with otlp_collector() as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_RESOURCE_ATTRIBUTES": "zone=b",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with telemetry("worker", TelemetryOptions()):
            with (
                span("outer", begins=True, steps=3),
                pytest.raises(OSError, match="gone"),
                span("inner"),
            ):
                raise OSError("gone")
            metrics.UPDATES.add(1, algorithm="ppo")
        spans = wait_until(lambda: len(collector.spans) == 2 and collector.spans, 30, "the spans")
        by_name = {one.name: one for one in spans}
        assert by_name["inner"].parent_id == by_name["outer"].span_id
        assert by_name["inner"].failed
        assert not by_name["outer"].failed
        assert by_name["outer"].attributes["steps"] == 3
        assert by_name["outer"].service == "worker"
        wait_until(lambda: ("worker", metrics.UPDATES.name) in collector.metrics, 30, "the metrics")


@pytest.mark.parametrize(
    ("sampler", "argument", "count"), [("always_off", "", 0), ("traceidratio", "1.0", 1)]
)
def test_the_sampler_is_the_environments(monkeypatch, sampler, argument, count):
    with otlp_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        with telemetry("worker", TelemetryOptions()):
            assert not metrics.are_wanted()
            with span("x", begins=True) as own:
                assert bool(own.traceparent) == bool(count)
        wait_until(lambda: len(collector.spans) == count, 30, "the spans")


def test_an_unreachable_collector_blocks_no_caller(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a listener
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}"
        )
        with telemetry("worker", TelemetryOptions()):
            span("x", begins=True).end()
        assert not are_recorded()


def test_switched_off(monkeypatch):
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}
    with telemetry("worker", TelemetryOptions(), environment):
        assert not are_recorded()


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
def test_another_protocol_is_refused(name):
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: "http/protobuf"}
    message = f"{name} is 'http/protobuf'; expected grpc, or nothing"
    with (
        pytest.raises(InvalidInput, match=message),
        telemetry("worker", TelemetryOptions(), environment),
    ):
        pass


def test_an_address_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        message = f"PODRACER_METRICS_LISTEN: cannot listen at {listen}: .*; expected a free address"
        with (
            pytest.raises(InvalidInput, match=message),
            telemetry("worker", TelemetryOptions(metrics_listen=listen), {}),
        ):
            pass
    assert not metrics.are_wanted()


@pytest.mark.parametrize("listen", ["9464", "unix:///tmp/x.sock", "127.0.0.1:x"])
def test_an_address_that_is_none(listen):
    with (
        pytest.raises(InvalidInput),
        telemetry("worker", TelemetryOptions(metrics_listen=listen), {}),
    ):
        pass
