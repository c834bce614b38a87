"""What shows metrics and traces: dashboards and documents name existing metrics, and the parts find
each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from podracer_platform.telemetry import metrics

ROOT = Path(__file__).parents[3]
OBSERVABILITY = ROOT / "deploy" / "observability"
DASHBOARDS = sorted((OBSERVABILITY / "grafana" / "dashboards").glob("*.json"))
SERVICES = ("orchestrator", "leaderboard", "learner", "worker", "evaluator")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_show_metrics_that_there_are(path):
    known = {name for metric in metrics.ALL for name in metric.prometheus_names}
    labels = {label for metric in metrics.ALL for label in metric.labels} | {
        "le",
        "job",
        "instance",
    }
    dashboard = json.loads(path.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        named = set(re.findall(r"\b(?:podracer|process)_\w+", expression))
        assert named, expression
        assert named <= known, expression
        by = {
            label.strip()
            for found in re.findall(r"by \(([^)]*)\)", expression)
            for label in found.split(",")
        }
        assert by <= labels, expression


def test_every_metric_is_shown_somewhere():
    shown = "".join(path.read_text() for path in DASHBOARDS)
    assert not [metric.name for metric in metrics.ALL if metric.prometheus_name not in shown]


def test_the_document_has_all_of_them():
    text = (ROOT / "docs" / "telemetry.md").read_text()
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (\w+) \|", text, re.MULTILINE))
    assert listed == {metric.name: metric.kind for metric in metrics.ALL}


def test_grafana_finds_its_dashboards_and_data():
    (provider,) = yaml.safe_load(
        (OBSERVABILITY / "grafana/provisioning/dashboards/dashboards.yaml").read_text()
    )["providers"]
    services = yaml.safe_load((OBSERVABILITY / "compose.yaml").read_text())["services"]
    mounts = dict(mount.split(":")[:2] for mount in services["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert all((OBSERVABILITY / source).exists() for source in mounts if source.startswith("."))
    sources = yaml.safe_load(
        (OBSERVABILITY / "grafana/provisioning/datasources/datasources.yaml").read_text()
    )
    uids = {source["uid"] for source in sources["datasources"]}
    for path in DASHBOARDS:
        used = {panel["datasource"]["uid"] for panel in json.loads(path.read_text())["panels"]}
        assert used <= uids
    collector = yaml.safe_load((OBSERVABILITY / "otel-collector.yaml").read_text())
    fetched = yaml.safe_load((OBSERVABILITY / "prometheus.yml").read_text())["scrape_configs"][0]
    port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    assert fetched["static_configs"][0]["targets"] == [f"otel-collector:{port}"]


def test_every_service_reaches_the_collector():
    deployment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    stack = yaml.safe_load((OBSERVABILITY / "compose.yaml").read_text())
    reached = stack["services"]["otel-collector"]["networks"]
    for service in SERVICES:
        assert set(deployment["services"][service]["networks"]) & set(reached), service
    for name, network in stack["networks"].items():
        assert network == deployment["networks"][name]
    assert all(service["profiles"] == ["observability"] for service in stack["services"].values())
    assert all(
        re.search(r":v?\d+\.\d+", service["image"]) for service in stack["services"].values()
    )
