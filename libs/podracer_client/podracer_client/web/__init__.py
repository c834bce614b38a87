"""The live page: a small server on loopback that follows jobs over gRPC and shows them in a
browser.

serving       starts it
application   the page over HTTP, and its actions
following     what it shows
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.web import application, following
    from podracer_client.web.following import Upstream, agent_values
    from podracer_client.web.serving import serve_page
else:
    __all__, __getattr__ = exports(__name__)
