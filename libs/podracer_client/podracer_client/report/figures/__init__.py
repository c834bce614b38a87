"""The figures of a report, by matplotlib: imported only for a report, because the import takes a
second.

curves            the evaluations of a job, and the best scores of an experiment's jobs
hyperparameters   over time
timelines         the family tree of agents, and the work of pods
rendering         axes; SVG and PNG
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.report.figures.curves import (
        MAX_GROUPS, MAX_LINES, draw_curves, draw_multiples, draw_overlay, draw_spread,
    )
    from podracer_client.report.figures.hyperparameters import (
        MAX_NAMES, draw_hyperparameters, drawn_names,
    )
    from podracer_client.report.figures.rendering import (
        WIDTH_IN, FigurePlan, Rendered, figure_element, legend, render, render_figures, tidy,
        write_figures,
    )
    from podracer_client.report.figures.timelines import (
        MAX_AGENTS, MAX_PODS, draw_lineage, draw_pods,
    )
else:
    __all__, __getattr__ = exports(__name__)
