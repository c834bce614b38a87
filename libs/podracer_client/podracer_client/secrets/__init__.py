"""The secrets of a deployment.

deployment   tokens, certificates and keys in a folder; signed tokens
cluster      the same as Secrets of a Kubernetes cluster
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.secrets import cluster, deployment
    from podracer_client.secrets.cluster import ClusterSecrets, keep
    from podracer_client.secrets.deployment import HOSTS, ROLES, create_secrets
else:
    __all__, __getattr__ = exports(__name__)
