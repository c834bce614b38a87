"""The first module that the fork server of `warm_start` imports: in the server itself, before
torch."""

import os

from podracer_platform.service.lifetime import PARENT_VARIABLE, exit_with_parent_if_asked

PID = os.getpid()
"""The server's, for the processes that are forked from it."""

if (
    PARENT_VARIABLE not in os.environ
):  # the standard library has started it again, with settings and tokens of its parent
    raise SystemExit(1)
exit_with_parent_if_asked()
# a reader of the parent's output sees its end with the parent's, not with this process's
os.dup2(2, 1)
