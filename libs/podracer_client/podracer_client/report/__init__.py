"""The report of a job or an experiment as one HTML page.

request, experiment, pods                the request in words; data of a page beside the History
making                                   a page, its figures and a short text
job_page, experiment_page                the pages, section by section; html: their elements
figures, job_figures, families           drawn by matplotlib; their captions; the order of a family
                                         tree
"""

from __future__ import annotations

import logging

# that it builds a cache of fonts is no news
logging.getLogger("matplotlib").setLevel(logging.ERROR)
