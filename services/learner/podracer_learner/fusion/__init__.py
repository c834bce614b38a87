"""Several learners of the same agents.

lead, follower_registry   the lead's side: the fusion, the admission of followers
follower                  the follower's side: a FOLLOW lease
stream                    the Fuse stream between them
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_learner.fusion.follower import FollowOptions, FusionFollower, RoundOver, follow
    from podracer_learner.fusion.follower_registry import MAX_STREAMS, FollowerRegistry
    from podracer_learner.fusion.lead import FusionLead, LeadOptions, lead_fusion
    from podracer_learner.fusion.stream import contribution_requests
else:
    __all__, __getattr__ = exports(__name__)
