"""Metrics: values, bounded labels, names as Prometheus sees them."""

from __future__ import annotations

import re
import urllib.request

import pytest

from podracer_platform.service import TelemetryOptions, telemetry
from podracer_platform.telemetry import OTHER, Counter, Gauge, Histogram, metrics


def test_nothing_is_counted_without_a_meter():
    assert not metrics.are_wanted()
    metrics.UPDATES.add(1, algorithm="ppo")
    metrics.WORKERS.set(3)
    with metrics.FUSION.timed():
        pass


def test_values_and_labels(counted):
    assert metrics.are_wanted()
    metrics.UPDATES.add(2, algorithm="ppo")
    metrics.UPDATES.add(3, algorithm="ppo")
    metrics.WORKERS.set(4)
    metrics.WORKERS.set(3)
    metrics.RPC_SERVER.record(0.3, method="JobService/CreateJob", code="OK")
    (updates,) = counted.points(metrics.UPDATES)
    assert (updates.value, dict(updates.attributes)) == (5, {"algorithm": "ppo"})
    (workers,) = counted.points(metrics.WORKERS)
    assert workers.value == 3
    (calls,) = counted.points(metrics.RPC_SERVER)
    assert (calls.count, calls.sum) == (1, 0.3)


def test_a_label_has_no_more_values_than_it_is_allowed(counted):
    for number in range(1000):
        metrics.UPDATES.add(1, algorithm=f"installed-{number}")
        metrics.LEASES.add(1, event=f"event-{number}")
        metrics.RPC_SERVER.record(0.1, method=f"Service/Method{number}", code=f"CODE{number}")
    for metric in (metrics.UPDATES, metrics.LEASES, metrics.RPC_SERVER):
        most = 1
        for bound in metric.labels.values():
            most *= (bound if isinstance(bound, int) else len(bound)) + 1
        assert len(counted.points(metric)) <= most
    assert {point.attributes["event"] for point in counted.points(metrics.LEASES)} == {OTHER}
    assert sum(point.value for point in counted.points(metrics.UPDATES)) == 1000


def test_a_label_that_was_not_declared_is_a_mistake(counted):
    with pytest.raises(KeyError):
        metrics.UPDATES.add(1, agent="projects/p/jobs/j/agents/a")


def test_no_label_grows_with_use():
    growing = {"agent", "job", "pod", "lease", "trace", "project", "user", "work", "worker"}
    for metric in metrics.ALL:
        assert not growing & set(metric.labels), metric.name
        for bound in metric.labels.values():
            assert (bound if isinstance(bound, int) else len(bound)) <= 100, metric.name
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)


def test_prometheus_fetches_all_of_them_by_the_names_of_the_table():
    with telemetry("learner", TelemetryOptions(metrics_listen="127.0.0.1:0"), {}) as url:
        assert url is not None
        for metric in metrics.ALL:
            labels = {
                label: "x" if isinstance(bound, int) else next(iter(bound))
                for label, bound in metric.labels.items()
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
    wanted = {
        name
        for metric in metrics.ALL
        if "gpu" not in metric.name
        for name in metric.prometheus_names
    }
    assert wanted <= served
    assert re.search(r'target_info\{.*service_name="learner"', text)
    assert not metrics.are_wanted()
