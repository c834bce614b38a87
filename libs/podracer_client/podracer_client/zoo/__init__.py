"""Jobs that are known to work, or expected to.

Each has a job file, NAME.yaml, and a card, NAME.json: the result, cost and curve of a run.

cards     reads both
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.zoo.cards import Entry, Run, entries, find_entry
else:
    __all__, __getattr__ = exports(__name__)
