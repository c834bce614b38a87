"""An overlay of deploy/k8s, run: its containers as processes, with the variables, Secrets and files
that it gives them.

What stands in for a cluster: addresses of the loopback interface for those of pods, folders for
volumes, an S3 server for MinIO, and the API server and kubelet of the other tests, which hold
callers to the overlay's Roles."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_client.jobs.client import Client
from podracer_client.secrets.cluster import ClusterSecrets
from podracer_client.servers.connection import Connection
from podracer_platform.kubernetes.access import read_kubeconfig
from podracer_platform.kubernetes.api import ClusterApi
from podracer_platform.rpc.tokens import FileToken
from support.kubernetes_api import NAMESPACE, Api
from support.kubernetes_cluster import Cluster
from support.kubernetes_kubelet import Processes, own_address
from support.kubernetes_store import Item, Store
from support.manifests import Object, PodSpec, environment, mounted, of_kind, pod_specs, rendered
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.services import ServiceProcesses

FILES_OF_TLS = {"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"}


def make_secrets(objects: tuple[Object, ...], store: Store, folder: Path) -> dict[str, Item]:
    """What podracer-secrets makes of what is in `store`, held to its Role; all Secrets that are
    there then."""
    api = Api(store, of_kind(objects, "Role")["podracer-secrets"])
    api.start()
    try:
        access = read_kubeconfig(api.kubeconfig(folder / "secrets.kubeconfig"))
        ClusterSecrets(ClusterApi(access), (), (), 365).ensure()
    finally:
        api.stop()
    return {secret["metadata"]["name"]: secret for secret in store.find("secrets")}


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
            container["env"] = said + [
                {"name": name, "value": value} for name, value in variables.items()
            ]
            # what we have put into variables is below this machine's own /tmp
            mounts = container["volumeMounts"]
            container["volumeMounts"] = [mount for mount in mounts if mount["mountPath"] != "/tmp"]
        super().start(own)


class OverlaySite(ServiceProcesses):
    """Its control plane and its cluster; `start` them, and `end` them."""

    def __init__(self, folder: Path, overlay: str) -> None:
        """`folder` is a short path: unix sockets are below it."""
        super().__init__(folder)
        self.objects = rendered(overlay)
        self._mounted = folder / "mounted"
        self.store = S3Server(folder / "s3", tls=self._mounted / "podracer-tls-store")
        network = f"127.{random.randint(64, 250)}.{random.randint(0, 250)}"
        self._hosts = {
            f"podracer-{role}": f"{network}.{place}"
            for place, role in enumerate(("orchestrator", "leaderboard", "web"), start=2)
        }
        self.kubelet = Kubelet(self)
        applied = Store()
        applied.create(
            "podtemplates", NAMESPACE, of_kind(self.objects, "PodTemplate")["podracer-pod-template"]
        )
        applied.create("configmaps", NAMESPACE, of_kind(self.objects, "ConfigMap")["podracer-pool"])
        self._mount_config_maps()
        self._mount_secrets(applied)
        self.cluster = Cluster(
            Api(applied, of_kind(self.objects, "Role")["podracer-orchestrator"]),
            runner=self.kubelet,
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
            name.removeprefix("PODRACER_").lower(): own_address(value, self._hosts[spec.owner])
            for name, value in self.variables(spec.containers[role], spec).items()
        }
        if role == "orchestrator":  # in a cluster it would find its service account
            settings["kubeconfig"] = str(self.cluster.api.kubeconfig(self.folder / "kubeconfig"))
        self.launch(role, role, **settings)

    def start_page(self) -> str:
        """The container of the live page; its URL."""
        (spec,) = [spec for spec in pod_specs(self.objects) if spec.owner == "podracer-web"]
        container = spec.containers["web"]
        words = [self._local(word, container, spec) for word in container["command"][1:]]
        command = [sys.executable, "-P", "-m", "podracer_client", *words]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
        }
        environment |= self.variables(container, spec)
        with (self.folder / "web.log").open("a") as log:
            command[-2] = command[-2].replace("0.0.0.0:", f"{self._hosts[spec.owner]}:")
            page = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.processes["web"] = page
        assert page.stdout is not None
        return page.stdout.readline().strip() or self.log("web")

    def variables(self, container: Mapping[str, Any], spec: PodSpec) -> dict[str, str]:
        """Those of a container, with what is mounted into it at the folders of this machine."""
        plain = {
            **container,
            "env": [entry for entry in container.get("env", ()) if "valueFrom" not in entry],
        }
        found = environment(plain, self.objects)
        return {name: self._local(value, container, spec) for name, value in found.items()}

    def _local(self, text: str, container: Mapping[str, Any], spec: PodSpec) -> str:
        for path, volume in mounted(container, spec).items():
            if "emptyDir" not in volume:  # those of pods are the kubelet's
                text = text.replace(path, str(self._volume(volume, spec.owner)))
        for host, address in self._hosts.items():
            text = text.replace(f"{host}:", f"{address}:")
        return text.replace("https://podracer-minio:9000", self.store.endpoint)

    def client(self) -> Client:
        """To be closed by the caller."""
        token = FileToken(self._mounted / "podracer-tokens-client" / "client")
        tls = self._mounted / "podracer-tls-client"
        addresses = (
            f"{self._hosts[f'podracer-{role}']}:50051" for role in ("orchestrator", "leaderboard")
        )
        return Client(Connection(*addresses, token, tls))

    def secret(self, name: str, key: str) -> str:
        """What a key of a Secret has."""
        return (self._mounted / name / key).read_text().strip()

    def host(self, role: str) -> str:
        """The address of a service of the control plane."""
        return self._hosts[f"podracer-{role}"]

    def _volume(self, volume: Mapping[str, Any], owner: str) -> Path:
        """The folder of a Secret or a ConfigMap, or of a claim of its owner."""
        if "configMap" in volume:
            return self._mounted / str(volume["configMap"]["name"])
        secret = volume.get("secret")
        return self._mounted / (secret["secretName"] if secret else f"{volume['name']}-{owner}-0")

    def _mount_config_maps(self) -> None:
        """All of them as files, also those that only set variables."""
        for name, config in of_kind(self.objects, "ConfigMap").items():
            folder = self._mounted / name
            folder.mkdir(parents=True)
            for key, content in config["data"].items():
                (folder / key).write_text(content)

    def _mount_secrets(self, applied: Store) -> None:
        """As files with the names that the overlay's volumes give them."""
        # of a store that is there already
        keys = {"access-key": ACCESS_KEY, "secret-key": SECRET_KEY}
        data = {name: b64encode(key.encode()).decode() for name, key in keys.items()}
        applied.create("secrets", NAMESPACE, {"metadata": {"name": "podracer-s3"}, "data": data})
        names = {
            volume["secret"]["secretName"]: {
                item["key"]: item["path"] for item in volume["secret"].get("items", ())
            }
            for spec in pod_specs(self.objects)
            for volume in spec.spec["volumes"]
            # S3Server's files have our names
            if "secret" in volume and spec.owner != "podracer-minio"
        }
        for name, secret in make_secrets(self.objects, applied, self.folder).items():
            folder = self._mounted / name
            folder.mkdir(parents=True)
            for key, content in secret["data"].items():
                path = folder / names.get(name, FILES_OF_TLS).get(key, key)
                path.write_bytes(b64decode(content))
                path.chmod(0o440)
