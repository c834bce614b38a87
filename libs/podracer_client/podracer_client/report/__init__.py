"""The report of a job or an experiment as one HTML page.

making                           a page, its figures and a short text; the page of an experiment
job_html                         the page of a job, section by section, and its figures' captions
request, experiment, timelines   the request in words; data of a page beside the History
figures                          drawn by matplotlib
html                             elements and colours of a page
"""

import logging
from typing import TYPE_CHECKING

from podracer_core.lazy import exports

logging.getLogger("matplotlib").setLevel(logging.ERROR)
if TYPE_CHECKING:
    from podracer_client.report.experiment import Experiment, best_so_far, experiment_of, spread
    from podracer_client.report.html import (
        GRID, MUTED, SERIES, Markup, definitions, element, header, join, page, section, table,
        tiles,
    )
    from podracer_client.report.job_html import (
        CURVES_BY_STEPS, job_figures, job_page, population_table,
    )
    from podracer_client.report.making import (
        experiment_figures, experiment_page, experiment_text, make_report, versions_of,
    )
    from podracer_client.report.request import environment_rows, request_rows, searched_names
    from podracer_client.report.timelines import (
        ancestors, best_agent, family_order, job_steps, living_lines, most_telling, pod_histories,
        throughput,
    )
else:
    __all__, __getattr__ = exports(__name__)
