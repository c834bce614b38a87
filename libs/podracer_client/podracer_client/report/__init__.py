"""The report of a job or an experiment as one HTML page: `gather` turns messages into `records`, `making` turns these
into the page, its figures and a short text."""

from __future__ import annotations

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # that it builds a cache of fonts is no news
