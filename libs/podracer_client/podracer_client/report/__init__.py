"""The report of a job or an experiment as one HTML page.

request, experiment, pods                the request in words; data of a page beside the History
making                                   a page, its figures and a short text
job_html, experiment_html                the pages, section by section; html: their elements;
                                         palette: their colours
figures, job_plots, families             drawn by matplotlib; their captions; the order of a family
                                         tree
"""

import logging
from typing import TYPE_CHECKING

from podracer_core.lazy import exports

logging.getLogger("matplotlib").setLevel(logging.ERROR)
if TYPE_CHECKING:
    from podracer_client.report.experiment import (
        Experiment, best_so_far, experiment_figures, experiment_of, experiment_page,
        experiment_text, spread,
    )
    from podracer_client.report.families import (
        ancestors, best_agent, family_order, living_lines, most_telling,
    )
    from podracer_client.report.html import (
        DARK, GRID, LIGHT, MUTED, SERIES, Markup, definitions, element, join, page, section,
        series_colors, table,
    )
    from podracer_client.report.job_html import (
        CURVES_BY_STEPS, job_figures, job_page, population_table,
    )
    from podracer_client.report.making import make_report, versions_of
    from podracer_client.report.pods import job_steps, pod_histories, throughput
    from podracer_client.report.request import environment_rows, request_rows, searched_names
else:
    __all__, __getattr__ = exports(__name__)
