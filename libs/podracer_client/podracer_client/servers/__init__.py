"""Finding the servers and connecting to them.

lookup                          finds a connection: given, in the environment, in a state folder, in
                                a context
connection, cluster             a connection; servers by name; servers in a cluster, through kubectl
stubs                           the gRPC stubs of a connection
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.servers import cluster, stubs
    from podracer_client.servers.cluster import current_kube_context
    from podracer_client.servers.connection import (
        DEFAULT_FOLDER, FILE_NAME, TLS_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Connection,
        ConnectionFile, Contexts, Place, token_source,
    )
    from podracer_client.servers.lookup import find_connection
    from podracer_client.servers.stubs import Servers, pages
else:
    __all__, __getattr__ = exports(__name__)
