"""Intervals and bounds of estimates; no torch.

means        of a mean: Student's t, the bootstrap-t, and the values behind scores of unequal
             precision; without SciPy or NumPy
bootstrap    intervals of statistics of dependent values (NumPy)
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.statistics.bootstrap import (
        RESAMPLES, bootstrap_deviation, bootstrap_interval, mean_block_length, paired_interval,
        resamples,
    )
    from podracer_core.statistics.means import (
        EXCESS_LEVEL, FALSE_CLAIMS, bootstrap_t_lower_bound, claim_level, excess_probability,
        posterior_means, reml_variance, student_t_cdf, student_t_half_width, student_t_quantile,
    )
else:
    __all__, __getattr__ = exports(__name__)
