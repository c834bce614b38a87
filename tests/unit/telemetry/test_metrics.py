"""Metrics: bounded labels, names as Prometheus sees them, and that documents and dashboards name what there is."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from podracer_core.telemetry import metrics
from podracer_core.telemetry.instruments import OTHER, Counter, Gauge, Histogram, Metric
from podracer_core.telemetry.start import TelemetryOptions, telemetry

ROOT = Path(__file__).parents[3]
OBSERVABILITY = ROOT / "deploy" / "observability"
DASHBOARDS = sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.attach(provider.get_meter("test"))
    yield reader
    metrics.detach()
    provider.shutdown()


def points(reader: InMemoryMetricReader, metric: Metric) -> list[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    found = [one for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics]
    return [point for one in found if one.name == metric.name for point in one.data.data_points]


def test_nothing_is_counted_where_nobody_listens() -> None:
    assert not metrics.are_wanted()
    metrics.UPDATES.add(1, algorithm="ppo")
    metrics.WORKERS.set(3)
    with metrics.FUSION.timed():
        pass


def test_values_and_labels(reader: InMemoryMetricReader) -> None:
    assert metrics.are_wanted()
    metrics.UPDATES.add(2, algorithm="ppo")
    metrics.UPDATES.add(3, algorithm="ppo")
    metrics.WORKERS.set(4)
    metrics.WORKERS.set(3)
    metrics.RPC_SERVER.record(0.3, method="JobService/CreateJob", code="OK")
    (updates,) = points(reader, metrics.UPDATES)
    assert (updates.value, dict(updates.attributes)) == (5, {"algorithm": "ppo"})
    (workers,) = points(reader, metrics.WORKERS)
    assert workers.value == 3
    (calls,) = points(reader, metrics.RPC_SERVER)
    assert (calls.count, calls.sum) == (1, 0.3)


def test_a_label_has_no_more_values_than_it_is_allowed(reader: InMemoryMetricReader) -> None:
    for number in range(1000):
        metrics.UPDATES.add(1, algorithm=f"installed-{number}")
        metrics.LEASES.add(1, event=f"event-{number}")
        metrics.RPC_SERVER.record(0.1, method=f"Service/Method{number}", code=f"CODE{number}")
    for metric in (metrics.UPDATES, metrics.LEASES, metrics.RPC_SERVER):
        most = 1
        for bound in metric.labels.values():
            most *= (bound if isinstance(bound, int) else len(bound)) + 1
        assert len(points(reader, metric)) <= most
    assert {point.attributes["event"] for point in points(reader, metrics.LEASES)} == {OTHER}
    assert sum(point.value for point in points(reader, metrics.UPDATES)) == 1000


def test_a_label_that_was_not_declared_is_a_mistake(reader: InMemoryMetricReader) -> None:
    with pytest.raises(KeyError):
        metrics.UPDATES.add(1, agent="projects/p/jobs/j/agents/a")


def test_no_label_grows_with_use() -> None:
    growing = {"agent", "job", "pod", "lease", "trace", "project", "user", "work", "worker"}
    for metric in metrics.ALL:
        assert not growing & set(metric.labels), metric.name
        for bound in metric.labels.values():
            assert (bound if isinstance(bound, int) else len(bound)) <= 100, metric.name
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)


def test_prometheus_fetches_all_of_them_by_the_names_of_the_table() -> None:
    with telemetry("learner", TelemetryOptions(metrics_listen="127.0.0.1:0"), {}) as url:
        assert url is not None
        for metric in metrics.ALL:
            labels = {
                label: "x" if isinstance(bound, int) else next(iter(bound)) for label, bound in metric.labels.items()
            }
            if isinstance(metric, Counter):
                metric.add(1, **labels)
            elif isinstance(metric, Gauge):
                metric.set(1, **labels)
            elif isinstance(metric, Histogram):
                metric.record(1, **labels)
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    served = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    wanted = {name for metric in metrics.ALL if "gpu" not in metric.name for name in metric.prometheus_names}
    assert wanted <= served
    assert re.search(r'target_info\{.*service_name="learner"', text)
    assert not metrics.are_wanted()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_show_metrics_that_there_are(path: Path) -> None:
    known = {name for metric in metrics.ALL for name in metric.prometheus_names}
    labels = {label for metric in metrics.ALL for label in metric.labels} | {"le", "job", "instance"}
    dashboard = json.loads(path.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        named = set(re.findall(r"\b(?:podracer|process)_\w+", expression))
        assert named, expression
        assert named <= known, expression
        by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(",")}
        assert by <= labels, expression


def test_every_metric_is_shown_somewhere() -> None:
    shown = "".join(path.read_text() for path in DASHBOARDS)
    assert not [metric.name for metric in metrics.ALL if metric.prometheus_name not in shown]


def test_the_document_has_all_of_them() -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text()
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (\w+) \|", text, re.MULTILINE))
    assert listed == {metric.name: metric.kind for metric in metrics.ALL}


def test_grafana_finds_its_dashboards_and_data() -> None:
    (provider,) = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/dashboards/dashboards.yaml").read_text())[
        "providers"
    ]
    services = yaml.safe_load((OBSERVABILITY / "compose.yaml").read_text())["services"]
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert all((OBSERVABILITY / source).exists() for source in mounts if source.startswith("."))
    sources = yaml.safe_load((OBSERVABILITY / "grafana/provisioning/datasources/datasources.yaml").read_text())
    uids = {source["uid"] for source in sources["datasources"]}
    for path in DASHBOARDS:
        used = {panel["datasource"]["uid"] for panel in json.loads(path.read_text())["panels"]}
        assert used <= uids
    collector = yaml.safe_load((OBSERVABILITY / "otel-collector.yaml").read_text())
    fetched = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())["scrape_configs"][0]
    port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    assert fetched["static_configs"][0]["targets"] == [f"otel-collector:{port}"]
