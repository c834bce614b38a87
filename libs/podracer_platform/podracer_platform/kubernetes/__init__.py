"""A light client of the Kubernetes API.

access   the API server's address and this process's credentials
api      the few calls that Podracer makes
active_label  the label by which a Service finds the active one of two Pods
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.kubernetes import active_label
    from podracer_platform.kubernetes.access import ClusterAccess, in_cluster, read_kubeconfig
    from podracer_platform.kubernetes.active_label import LABEL, REPLICAS, keep_active_label
    from podracer_platform.kubernetes.api import (
        CALLS, EXPIRED, ClusterApi, Item, Resource, Selector, Watch,
    )
else:
    __all__, __getattr__ = exports(__name__)
