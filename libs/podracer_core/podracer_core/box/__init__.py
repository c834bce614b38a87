"""The box in which users' code runs: what a child process may do, and how it is held to that; no
torch.

limits       what is allowed, and what this machine lacks for it
launcher     the program that shuts a child in
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.box import launcher, limits
    from podracer_core.box.launcher import IN_BOX, landlock_version
    from podracer_core.box.limits import box_for, missing

else:
    __all__, __getattr__ = exports(__name__)
