"""The fusion of several learners of a cohort: pure functions on their parameters, and the lead's
state. No I/O.

state        the shared state and the learners' contributions; pooled statistics of normalizers
fusion       the interface of a fusion, for packages to implement, and the class of a fusion's name
built_in     mean, weighted, outer
combining    contributions in, the shared state out; the table of contributions, with quorum and
             deadline

Learners exchange contributions through `podracer_core.training.session` and its `FusionTransport`.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.fusion.combining import (
        LEAD, Contribution, Decision, Fused, Fusion, FusionOptions, FusionState, FusionTable, Mean,
        Moments, Outer, Parameters, Stack, Weighted, fuse, fusion_class, outer_step, pooled,
    )
else:
    __all__, __getattr__ = exports(__name__)
