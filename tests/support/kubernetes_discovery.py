"""What an API server says of itself, so that kubectl finds its way."""

from __future__ import annotations

from typing import Any

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_CORE = {"pods": ("Pod", ["po"]), "configmaps": ("ConfigMap", ["cm"]), "events": ("Event", ["ev"]),
         "secrets": ("Secret", []), "podtemplates": ("PodTemplate", []),
         "resourcequotas": ("ResourceQuota", ["quota"])}  # fmt: skip


def discovery(path: str) -> dict[str, Any] | None:
    """The answer to a GET of a path that is no object's; None where it may be one's."""
    batch = {"groupVersion": "batch/v1", "version": "v1"}
    group = {"name": "batch", "versions": [batch], "preferredVersion": batch}
    answers: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        "/api/v1": _resources("v1", _CORE),
        "/apis/batch": {"kind": "APIGroup", "apiVersion": "v1", **group},
        "/apis/batch/v1": _resources("batch/v1", {"jobs": ("Job", [])}),
        "/openapi/v3": {"paths": {}},
    }
    return answers.get(path.rstrip("/"))


def _resources(version: str, resources: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    found = [
        {
            "name": name,
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": _VERBS,
            "shortNames": short,
        }
        for name, (kind, short) in resources.items()
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": found,
    }
