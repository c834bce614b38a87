"""Training in the caller's own process, as in a notebook: the API of `import podracer`. No server,
no service.

order         the arguments of `train`, checked: an id, a class or a function -> environments
training      one cohort, from its first step to its result: its members, that differ in
              hyperparameters, and their children; hooks for the caller
result        the result: a policy that acts and can be evaluated, filmed, saved and trained further
reporting     looks, the line of progress, what has broken, a figure
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.in_process.order import Order, find_source
    from podracer_core.in_process.reporting import Look, ProgressLine, interrupts
    from podracer_core.in_process.result import Policy, Result, begin_from, load
    from podracer_core.in_process.training import Callback, replace_worst, train
else:
    __all__, __getattr__ = exports(__name__)
