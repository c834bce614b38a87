"""An overlay of deploy/k8s, run: its containers as processes, with the variables, Secrets and files that it gives them.

What stands in for a cluster: addresses of the loopback interface for those of pods, folders for volumes, an S3 server
for MinIO, and the API server and kubelet of the other tests, which hold the orchestrator to the overlay's Role.
"""

from __future__ import annotations

import copy
import random
import shutil
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_client.client import Client
from podracer_client.connection import Connection
from podracer_client.deployment_secrets import create_secrets
from podracer_core.rpc.tokens import FileToken
from support.kubernetes_api import Api
from support.kubernetes_cluster import Cluster
from support.kubernetes_kubelet import Processes
from support.kubernetes_store import Item, Store
from support.manifests import K8S, PodSpec, environment, kustomize, mounted, of_kind, pod_specs, rendered
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.services import ServiceProcesses


class Kubelet(Processes):
    """As a kubelet, it also knows what ConfigMaps say and where Secrets are mounted."""

    def __init__(self, site: OverlaySite) -> None:
        super().__init__()
        self._site = site

    def start(self, pod: Item) -> None:
        own = copy.deepcopy(pod)
        spec = PodSpec(pod["metadata"]["name"], pod["metadata"]["labels"], own["spec"])
        for container in spec.containers.values():
            said = [entry for entry in container["env"] if "valueFrom" in entry]
            variables = self._site.variables(container, spec)
            container["env"] = said + [{"name": name, "value": value} for name, value in variables.items()]
            mounts = container["volumeMounts"]  # what we have put into variables is below this machine's own /tmp
            container["volumeMounts"] = [mount for mount in mounts if mount["mountPath"] != "/tmp"]
        super().start(own)


class OverlaySite(ServiceProcesses):
    """Its control plane and its cluster; `start` them, and `end` them."""

    def __init__(self, folder: Path, overlay: str) -> None:
        """`folder` is a short path: unix sockets are below it."""
        super().__init__(folder)
        self.objects = rendered(overlay)
        self.store = S3Server(folder / "s3")
        self.secrets = folder / "secrets"
        self._mounted = folder / "mounted"
        network = f"127.{random.randint(64, 250)}.{random.randint(0, 250)}"
        self._hosts = {"podracer-orchestrator": f"{network}.2", "podracer-leaderboard": f"{network}.3"}
        self._mount_secrets()
        self.kubelet = Kubelet(self)
        self.cluster = Cluster(
            Api(Store(), of_kind(self.objects, "Role")["podracer-orchestrator"]), runner=self.kubelet
        )

    def start(self) -> None:
        self.store.start()
        self.cluster.start()
        self.start_service("leaderboard")
        self.start_service("orchestrator")

    def end(self) -> None:
        self.end_processes()
        self.cluster.stop()
        self.kubelet.close()
        self.store.stop()

    def start_service(self, role: str) -> None:
        """A container of the control plane."""
        (spec,) = [spec for spec in pod_specs(self.objects) if spec.owner == f"podracer-{role}"]
        settings = {
            name.removeprefix("PODRACER_").lower(): value.replace("0.0.0.0:", f"{self._hosts[spec.owner]}:")
            for name, value in self.variables(spec.containers[role], spec).items()
        }
        if role == "orchestrator":  # in a cluster it would find its service account
            settings["kubeconfig"] = str(self.cluster.api.kubeconfig(self.folder / "kubeconfig"))
        self.launch(role, role, **settings)

    def variables(self, container: Mapping[str, Any], spec: PodSpec) -> dict[str, str]:
        """Those of a container, with what is mounted into it at the folders of this machine."""
        plain = {**container, "env": [entry for entry in container.get("env", ()) if "valueFrom" not in entry]}
        found = environment(plain, self.objects)
        for path, volume in mounted(container, spec).items():
            if "emptyDir" not in volume:  # those of pods are the kubelet's
                found = {name: value.replace(path, str(self._volume(volume))) for name, value in found.items()}
        for host, address in self._hosts.items():
            found = {name: value.replace(f"{host}:", f"{address}:") for name, value in found.items()}
        return {name: value.replace("http://podracer-minio:9000", self.store.endpoint) for name, value in found.items()}

    def client(self) -> Client:
        """To be closed by the caller."""
        token, tls = FileToken(self.secrets / "tokens" / "client"), self.secrets / "tls" / "client"
        addresses = (f"{self._hosts[f'podracer-{role}']}:50051" for role in ("orchestrator", "leaderboard"))
        return Client(Connection(*addresses, token, tls))

    def host(self, role: str) -> str:
        """The address of a service of the control plane."""
        return self._hosts[f"podracer-{role}"]

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        """The folder of a Secret, a ConfigMap or a claim."""
        if secret := volume.get("secret"):
            return self._mounted / secret["secretName"]
        if config := volume.get("configMap"):
            folder = self._mounted / config["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in of_kind(self.objects, "ConfigMap")[config["name"]]["data"].items():
                (folder / name).write_text(text)
            return folder
        return self._mounted / volume["persistentVolumeClaim"]["claimName"]

    def _mount_secrets(self) -> None:
        """The Secrets of deploy/k8s/secrets, as files with the names that the overlay's volumes give them."""
        kustomization = self.folder / "kustomization"
        shutil.copytree(K8S / "secrets", kustomization, ignore=shutil.ignore_patterns("files"))
        for name, key in (("access_key", ACCESS_KEY), ("secret_key", SECRET_KEY)):  # a store that is there already
            (kustomization / "files" / "store").mkdir(parents=True, exist_ok=True)
            (kustomization / "files" / "store" / name).write_text(f"{key}\n")
        create_secrets(kustomization / "files")
        self.secrets = kustomization / "files"
        names = {
            volume["secret"]["secretName"]: {item["key"]: item["path"] for item in volume["secret"].get("items", ())}
            for spec in pod_specs(self.objects)
            for volume in spec.spec["volumes"]
            if "secret" in volume
        }
        secrets = of_kind(kustomize(kustomization), "Secret")
        for name in names.keys() & secrets.keys():  # a component's secrets are there for overlays without it too
            folder = self._mounted / name
            folder.mkdir(parents=True)
            for key, content in secrets[name]["data"].items():
                path = folder / names[name].get(key, key)
                path.write_bytes(b64decode(content))
                path.chmod(0o440)
