"""Files on their way to a server and back.

uploads     a job's code and data, to the object store
stored_data named data sets: stored, listed, described, fetched
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.artifacts.stored_data import (
        data_sets, delete_data_set, download_data_set, fetch_data_set, store_data_set,
    )
    from podracer_client.artifacts.uploads import upload_bytes, upload_files
else:
    __all__, __getattr__ = exports(__name__)
