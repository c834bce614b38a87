"""The figures of a report, by matplotlib: imported only for a report, because the import takes a
second.

curves, comparison, hyperparameters, lineage, pods    one figure each
axes, rendering                                       shared parts; SVG and PNG
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.report.figures.comparison import (
        MAX_GROUPS, draw_multiples, draw_overlay, draw_spread,
    )
    from podracer_client.report.figures.curves import MAX_LINES, draw_curves
    from podracer_client.report.figures.hyperparameters import (
        MAX_NAMES, draw_hyperparameters, drawn_names,
    )
    from podracer_client.report.figures.lineage import MAX_AGENTS, draw_lineage
    from podracer_client.report.figures.pods import MAX_PODS, draw_pods
    from podracer_client.report.figures.rendering import (
        WIDTH_IN, FigurePlan, Rendered, figure_element, legend, render, render_figures, tidy,
        write_figures,
    )
else:
    __all__, __getattr__ = exports(__name__)
