"""Sections of a job that learning needs: fields, defaults and checks; no torch.

search       which algorithms with which hyperparameters
evolution    how agents compete, when training ends, and how policies are evaluated
pod          the size of a cohort and the processes that train it
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.sections.evolution import (
        EVALUATION_FRACTION, MAX_COUNT, MAX_EPISODES, MIN_EPISODES, Checks, EvaluationPlan,
        Evolution, Objective, Round,
    )
    from podracer_core.sections.pod import (
        CHECKPOINT_INTERVAL_S, MAX_MEMBERS, MAX_PODS, Fusion, Pod, PodCount, Resources,
        is_profile_name,
    )
    from podracer_core.sections.search import (
        AlgorithmShare, Dimension, Search, read_space, search_space,
    )
else:
    __all__, __getattr__ = exports(__name__)
