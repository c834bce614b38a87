"""Several learners of the same agents.

lead                the lead's side: the fusion, and its streams to followers
follower            the follower's side: a FOLLOW lease
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.fusion.follower import FollowOptions, FusionFollower, RoundOver, follow
    from podracer_learner.fusion.lead import MAX_STREAMS, FollowerRegistry
    from podracer_learner.fusion.lead import (
        FusionLead,
        LeadOptions,
        contribution_requests,
        lead_fusion,
    )
else:
    __all__, __getattr__ = exports(__name__)
