"""Finding the servers and connecting to them.

connection   a connection, and how it is found; contexts, which are servers by name
stubs        the gRPC stubs of a connection
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.servers import stubs
    from podracer_client.servers.connection import (
        DEFAULT_FOLDER, FILE_NAME, TLS_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, Connection,
        ConnectionFile, Contexts, Place, connect_through_kubectl, current_kube_context,
        find_connection, token_source,
    )
    from podracer_client.servers.stubs import Servers, pages
else:
    __all__, __getattr__ = exports(__name__)
