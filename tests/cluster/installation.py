"""An installation of Podracer in one namespace of a real cluster, made by `kubectl apply -k`
alone."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from cluster.kubectl import Kubectl, wait_until

from podracer_client import Client, Job, PolicyClient
from podracer_client.servers import Place, connect_through_kubectl
from podracer_core.config import Secret
from podracer_core.errors import PodracerError
from podracer_core.storage import ObjectStore
from podracer_platform.storage import S3Settings, open_store
from support.audit import Audit
from support.processes import ROOT

CONTROL_PLANE = ("statefulset/podracer-leaderboard", "statefulset/podracer-orchestrator")
ALL = ("statefulset/podracer-minio", *CONTROL_PLANE)
RESTRICTED = {
    f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")
}


def json_patch(kind: str, name: str, *operations: Mapping[str, Any]) -> dict[str, Any]:
    """A patch of a kustomization."""
    return {"target": {"kind": kind, "name": name}, "patch": json.dumps(operations)}


_SHARE_PROCESSES = [
    json_patch(kind, name, {"op": "add", "path": f"{path}/shareProcessNamespace", "value": True})
    for kind, name, path in (
        ("PodTemplate", "podracer-pod-template", "/template/spec"),
        ("StatefulSet", "podracer-(orchestrator|leaderboard)", "/spec/template/spec"),
    )
]
"""So that a container of a pod can kill -9 what runs in another: the first process of a container
cannot be killed from inside."""
_NO_NAMESPACE = {
    "target": {"kind": "Namespace"},
    "patch": "{$patch: delete, apiVersion: v1, kind: Namespace, metadata: {name: podracer}}",
}
"""The overlay dev contains its own, which `kubectl delete -k` would take along with every
volume."""


class Installation:
    """`apply`, `delete`, and what a test wants to know of it."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.kubectl = Kubectl(namespace)
        self.namespace = namespace
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def make_namespace(self) -> None:
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.namespace, "labels": RESTRICTED},
            }
        )

    def overlay(
        self,
        base: str = "overlays/dev",
        *,
        tag: str = "",
        patches: Sequence[Mapping[str, Any]] = (),
        components: Sequence[str] = (),
        stays: str = ".*",
    ) -> Path:
        """Write a kustomization of the user's own over one of ours. The StatefulSets `stays` are on
        one node."""
        registry = _settings()["PODRACER_REGISTRY"]
        tag = tag or os.environ.get("PODRACER_CLUSTER_TAG", "")
        roles = (
            ("orchestrator", "leaderboard", "worker", "evaluator", "policy", "minio") if tag else ()
        )
        images = [{"name": f"{registry}/podracer-{role}", "newTag": tag} for role in roles]
        # Without CUDA, in the overlay gpu too.
        images.append(
            {"name": f"{registry}/podracer-learner", "newTag": tag or _settings()["PODRACER_TAG"]}
        )
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.namespace,
            "resources": [os.path.relpath(ROOT / "deploy" / "k8s" / base, self._folder)],
            "components": [
                os.path.relpath(ROOT / "deploy" / "k8s" / "components" / name, self._folder)
                for name in components
            ],
            "images": images,
            "patches": [_NO_NAMESPACE, *_SHARE_PROCESSES, self._one_node(stays), *patches],
        }
        (self._folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return self._folder

    def _one_node(self, stays: str) -> dict[str, Any]:
        """The control plane and its volumes on the first node that takes pods, so that another one
        can be lost."""
        node = next(each for each in self.kubectl.get("nodes") if not each["spec"].get("taints"))
        host = node["metadata"]["labels"]["kubernetes.io/hostname"]
        selector = {"kubernetes.io/hostname": host}
        operation = {"op": "add", "path": "/spec/template/spec/nodeSelector", "value": selector}
        return {"target": {"kind": "StatefulSet", "name": stays}, "patch": json.dumps([operation])}

    def apply(self, base: str = "overlays/dev", *words: str, **options: Any) -> str:
        """`kubectl apply -k`; what it prints."""
        return self.kubectl("apply", "-k", str(self.overlay(base, **options)), *words)

    def apply_former(self, tag: str) -> None:
        """The control plane and pods by images of the version before, which read the pod template
        from a file."""
        rendered = self.kubectl("kustomize", str(self.overlay()))
        template = next(
            each for each in yaml.safe_load_all(rendered) if each["kind"] == "PodTemplate"
        )
        text = re.sub(r"(image: .*):[\w.-]+", rf"\1:{tag}", yaml.safe_dump(template))
        text = text.replace("/var/cache/podracer\n", "/var/cache/podracer/own\n").replace(
            "mountPath: /var/cache/podracer/own", "mountPath: /var/cache/podracer"
        )  # it wants a folder of its own
        metadata = {"name": "podracer-former-template"}
        data = {"pod-template.yaml": text}
        self.kubectl.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )
        folder = "/etc/podracer/pod-template"
        by_file = {
            "env": [{"name": "PODRACER_POD_TEMPLATE", "value": f"{folder}/pod-template.yaml"}],
            "volumeMounts": [{"name": "former-template", "mountPath": folder, "readOnly": True}],
        }
        volumes = [{"name": "former-template", "configMap": metadata}]
        self.apply(
            patches=[
                self._former_service("orchestrator", tag, by_file, volumes),
                self._former_service("leaderboard", tag, {}, []),
            ]
        )

    def _former_service(
        self, role: str, tag: str, container: dict[str, Any], volumes: list[Any]
    ) -> dict[str, Any]:
        image = f"{_settings()['PODRACER_REGISTRY']}/podracer-{role}:{tag}"
        pod = {"containers": [{"name": role, "image": image, **container}], "volumes": volumes}
        patch = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": f"podracer-{role}"},
            "spec": {"template": {"spec": pod}},
        }
        return {"patch": yaml.safe_dump(patch)}

    def delete(self) -> None:
        """`kubectl delete -k` of what was applied last."""
        self.kubectl("delete", "-k", str(self._folder), "--ignore-not-found", timeout_s=300)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """As a context of `podracer context` reaches it, from where kubectl works."""
        with Client(connect_through_kubectl(Place(self.namespace))) as client:
            yield client

    @contextmanager
    def policies(self) -> Iterator[PolicyClient]:
        """The policy server, as a client that holds token and certificate."""
        secrets = {
            kind: self.kubectl.get("secret", f"podracer-{kind}-client")["data"]
            for kind in ("tokens", "tls")
        }
        for name, key in {"ca.pem": "ca.crt", "cert.pem": "tls.crt", "key.pem": "tls.key"}.items():
            file = self._folder / name
            file.touch(0o600)
            file.write_bytes(base64.b64decode(secrets["tls"][key]))
        token = base64.b64decode(secrets["tokens"]["client"]).decode().split()[0]
        with (
            self.kubectl.forward("service/podracer-policy", 50051) as address,
            PolicyClient(address, token=token, tls=self._folder) as client,
        ):
            yield client

    def copy_databases(self) -> dict[str, str]:
        """URLs of copies, each as of one moment, the orchestrator's first."""
        urls = {}
        for role in ("orchestrator", "leaderboard"):
            path = self._folder / f"{role}.sqlite"
            path.write_bytes(self.kubectl.python(f"podracer-{role}-0", role, _COPY, role))
            urls[role] = f"sqlite:///{path}"
        return urls

    @contextmanager
    def store(self) -> Iterator[ObjectStore]:
        """The bucket, by way of a port-forward."""
        secret = self.kubectl.get("secret", "podracer-s3")["data"]
        keys = {
            name: Secret(base64.b64decode(value).decode().strip()) for name, value in secret.items()
        }
        authority = self._folder / "store-ca.pem"
        authority.write_bytes(
            base64.b64decode(self.kubectl.get("secret", "podracer-tls-store")["data"]["ca.crt"])
        )
        with self.kubectl.forward("service/podracer-minio", 9000) as address:
            settings = S3Settings(
                f"https://{address}", keys["access-key"], keys["secret-key"], ca_file=authority
            )
            store = open_store("s3://podracer", settings)
            try:
                yield store
            finally:
                store.close()

    def audit(self, *, at_rest: bool = False) -> list[str]:
        """What is wrong with counters and events; at rest also with deliveries and checkpoints."""
        audit = Audit(**self.copy_databases())
        if not at_rest:
            return audit.running()
        with self.store() as store:
            return audit.at_rest(store)

    def back_up(self, verb: str, file: Path) -> None:
        """`save` or `restore` by the script that docs/deploy.md names."""
        command = [str(ROOT / "deploy" / "k8s" / "backup"), verb, str(file)]
        subprocess.run(
            command, env=os.environ | {"NAMESPACE": self.namespace}, check=True, timeout=600
        )
        self.kubectl.wait_ready(*ALL)

    def events(self, job: str) -> set[str]:
        with self.client() as client:
            return {event.kind for event in client.job(job).latest_events(200)}


class Pulse:
    """Looks at a job twice a second: committed steps never go back, and how long at most none were
    trained."""

    def __init__(self, installation: Installation, job: str) -> None:
        self.longest_gap_s = 0.0
        self.went_back: list[str] = []
        self.steps = self.live_steps = 0
        self.job = job
        self._installation = installation
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def reset(self) -> None:
        """Gaps are measured from now on."""
        self.longest_gap_s, self._moved = 0.0, time.monotonic()

    def wait_for_steps(self, limit_s: float = 240.0) -> None:
        """Until more have been committed than now."""
        before = self.steps
        wait_until(lambda: self.steps > before, limit_s, f"more than {before} committed steps")

    def _run(self) -> None:
        self._moved = time.monotonic()
        while not self._ended.is_set():
            with suppress(PodracerError), self._installation.client() as client:
                job: Job = client.job(self.job)
                while not self._ended.wait(0.5):
                    progress = job.refresh().progress
                    if progress.env_steps < self.steps:
                        self.went_back.append(f"{self.steps} steps, then {progress.env_steps}")
                    if progress.live_env_steps != self.live_steps:
                        self._moved = time.monotonic()
                    self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - self._moved)
                    self.steps, self.live_steps = progress.env_steps, progress.live_env_steps
            self._ended.wait(0.5)
            self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - self._moved)


_COPY = """
import sqlite3, sys, tempfile
with tempfile.NamedTemporaryFile() as copy:
    source = sqlite3.connect(f"file:/var/lib/podracer/{sys.argv[1]}.sqlite?mode=ro", uri=True)
    target = sqlite3.connect(copy.name)
    source.backup(target)
    target.close()
    sys.stdout.buffer.write(open(copy.name, "rb").read())
"""


def _settings() -> dict[str, str]:
    """Names of images and registry: the file `.env` of the repository."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
