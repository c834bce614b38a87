"""Who may speak to whom: each overlay's policies, worked out as a cluster does, against the paths
that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from support.manifests import OVERLAYS, PodSpec, of_kind, pod_specs, rendered

PATHS = {
    ("orchestrator", "leaderboard", 50051),
    ("pod", "orchestrator", 50051),
    ("pod", "pod", 50051),
}
MINIO = {("orchestrator", "object-store", 9000), ("pod", "object-store", 9000)}
SOME = {
    overlay: {(role, "orchestrator", 50051), (role, "leaderboard", 50051)}
    for overlay, role in (("serving", "policy"), ("web", "web"))
}
CLIENTS = {("podracer.dev/clients", role, 50051) for role in ("orchestrator", "leaderboard")}
METRICS = {("podracer.dev/metrics", role, 9464) for role in ("orchestrator", "leaderboard", "pod")}
API_SERVER = {
    (role, port) for role in ("orchestrator", "secrets") for port in (443, 6443, 8443, 16443)
}
"""At any of these ports, whatever the cluster."""
PRODUCTION = {("orchestrator", 5432), ("leaderboard", 5432)}

Rule = Mapping[str, Any]

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@each_overlay
def test_the_paths_between_pods_are_those_that_are_needed(overlay):
    pods = list(pod_specs(rendered(overlay)))
    ports = {
        port["containerPort"]
        for pod in pods
        for one in pod.containers.values()
        for port in one.get("ports", ())
    }
    found = {
        (_role(source), _role(target), port)
        for source in pods
        for target in pods
        for port in ports
        if any(_lets(rule, target, port) for rule in _rules(overlay, source, "egress"))
        and any(_lets(rule, source, port) for rule in _rules(overlay, target, "ingress"))
    }
    assert found == PATHS | (set() if overlay == "production" else MINIO) | SOME.get(overlay, set())


@each_overlay
def test_no_path_is_open_at_one_end_only(overlay):
    """What one side may send, the other may receive, and the other way about."""
    pods = list(pod_specs(rendered(overlay)))
    for direction, other in (("egress", "ingress"), ("ingress", "egress")):
        for one in pods:
            for rule in _rules(overlay, one, direction):
                for port in (entry["port"] for entry in rule["ports"]):
                    for peer in (pod for pod in pods if _lets(rule, pod, port)):
                        assert any(
                            _lets(back, one, port) for back in _rules(overlay, peer, other)
                        ), (one, peer, port)


@each_overlay
def test_whom_other_namespaces_reach(overlay):
    found = {
        (label, _role(pod), port["port"])
        for pod in pod_specs(rendered(overlay))
        for rule in _rules(overlay, pod, "ingress")
        for peer in rule["from"]
        for label in peer.get("namespaceSelector", {}).get("matchLabels", ())
        for port in rule["ports"]
    }
    some = {
        "serving": {
            ("podracer.dev/clients", "policy", 50051),
            ("podracer.dev/metrics", "policy", 9464),
        },
        "web": {("podracer.dev/clients", "web", 8080)},
    }
    assert found == CLIENTS | METRICS | some.get(overlay, set())


@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "::/0"])
@each_overlay
def test_whom_the_world_is_open_to(overlay, cidr):
    found = {
        (_role(pod), port["port"])
        for pod in pod_specs(rendered(overlay))
        for rule in _rules(overlay, pod, "egress")
        for peer in rule["to"]
        if peer.get("ipBlock", {}).get("cidr") == cidr
        for port in rule["ports"]
    }
    labels_itself = {("leaderboard", port) for _, port in API_SERVER}
    assert found == API_SERVER | (PRODUCTION | labels_itself if overlay == "production" else set())


def test_pods_reach_no_store_outside_before_an_overlay_names_it():
    (rule,) = of_kind(rendered("production"), "NetworkPolicy")["podracer-to-external-s3"]["spec"][
        "egress"
    ]
    assert rule == {
        "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
        "ports": [{"protocol": "TCP", "port": 443}],
    }


@each_overlay
def test_every_pod_may_ask_for_names(overlay):
    for pod in pod_specs(rendered(overlay)):
        (rule,) = [
            rule
            for rule in _rules(overlay, pod, "egress")
            if any("namespaceSelector" in peer for peer in rule["to"])
        ]
        assert rule["to"][0] == {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
        assert rule["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


@each_overlay
def test_nothing_is_allowed_that_is_not_said(overlay):
    objects = rendered(overlay)
    policies = of_kind(objects, "NetworkPolicy")
    assert policies["podracer-default-deny"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }
    for policy in policies.values():
        spec = policy["spec"]
        assert any(_selects(spec["podSelector"], pod.labels) for pod in pod_specs(objects)), policy[
            "metadata"
        ]
        assert {"ingress", "egress"} & set(spec) <= {kind.lower() for kind in spec["policyTypes"]}
        for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
            assert rule["ports"]
            assert rule.get("from") or rule.get("to")
            for peer in (*rule.get("from", ()), *rule.get("to", ())):
                assert {"podSelector", "namespaceSelector"} & set(peer) != {"podSelector"} or any(
                    _selects(peer["podSelector"], pod.labels) for pod in pod_specs(objects)
                ), policy["metadata"]


def _role(pod: PodSpec) -> str:
    return pod.labels["app.kubernetes.io/component"]


def _rules(overlay: str, pod: PodSpec, direction: str) -> Iterator[Rule]:
    """All that the policies for a pod let in (`ingress`) or out (`egress`)."""
    for policy in of_kind(rendered(overlay), "NetworkPolicy").values():
        if _selects(policy["spec"]["podSelector"], pod.labels):
            yield from policy["spec"].get(direction, ())


def _lets(rule: Rule, pod: PodSpec, port: int) -> bool:
    """Whether a rule names a pod of this namespace, at a port."""
    peers = (*rule.get("from", ()), *rule.get("to", ()))
    here = [
        peer["podSelector"]
        for peer in peers
        if "podSelector" in peer and "namespaceSelector" not in peer
    ]
    return any(_selects(selector, pod.labels) for selector in here) and port in [
        one["port"] for one in rule["ports"]
    ]


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(one["operator"] == "In" for one in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )
