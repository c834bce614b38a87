"""Users' environments in a few child processes, over shared memory.

preprocess, row_processes            the batch, and its processes
preprocess_child, rows               the code that runs in a child; what breaks in it
gymnasium_rows, batched_rows         the two kinds of user environments
exchange, child_process, row_codec   the communication between both sides; what a child prints
checker                              tries an environment before anything trains in it
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.environments.processes import checker, child_process
    from podracer_core.environments.processes.batched_rows import (
        BatchedRows, check_attributes, inspect_batched,
    )
    from podracer_core.environments.processes.checker import problem_of_kind
    from podracer_core.environments.processes.child_process import (
        KEPT_BYTES, ChildOutput, scrubbed_environment,
    )
    from podracer_core.environments.processes.exchange import (
        Channel, create_memory, packed, size_memory,
    )
    from podracer_core.environments.processes.preprocess import PreprocessVecEnv
    from podracer_core.environments.processes.preprocess_child import hint
    from podracer_core.environments.processes.row_codec import action_reader, observation_writer
    from podracer_core.environments.processes.row_processes import (
        MOST_ISOLATED, LocalRows, MakeEnvironment, RowProcesses, core_count,
    )
    from podracer_core.environments.processes.rows import episode_seed
else:
    __all__, __getattr__ = exports(__name__)
