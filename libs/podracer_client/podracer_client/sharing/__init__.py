"""A policy given to others.

card  what its page says
upload  to Hugging Face, or into MLflow's registry of models
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.sharing.card import write_share
    from podracer_client.sharing.upload import check_destination, push
else:
    __all__, __getattr__ = exports(__name__)
