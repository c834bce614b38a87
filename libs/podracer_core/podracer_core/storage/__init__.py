"""Objects by key, in a folder; no torch.

object_store  the interface, which the platform's stores have, too
folder        file:///path
layout        the keys of objects
manifest      the files of an object of several files, and their checksums
"""

from __future__ import annotations

from podracer_core.storage.object_store import ObjectStore

__all__ = ["ObjectStore"]
