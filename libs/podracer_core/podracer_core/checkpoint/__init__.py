"""Checkpoints of one agent: tensors by group in an object store, the manifest last.

objects       save_checkpoint, load_checkpoint, open_checkpoint_folder
policy        a policy from a checkpoint: load_actor, load_policy; as a file: pack_policy,
              open_packed_policy; several as one: load_ensemble, load_ensemble_policy; greedy
              episodes: evaluate_checkpoints, played_observations
export        a policy for use without Podracer: export_policy, export_ensemble
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports
from podracer_core.storage import CheckpointRef

if TYPE_CHECKING:
    from podracer_core.checkpoint.export import (
        READERS, SUFFIX_OF, WRITERS, Format, compare, export_ensemble, export_policy,
    )
    from podracer_core.checkpoint.objects import (
        Checkpoint, load_checkpoint, load_packed_checkpoint, open_checkpoint_folder,
        save_checkpoint,
    )
    from podracer_core.checkpoint.policy import (
        POLICY_GROUPS, array_spaces, combine, ensemble_rule, evaluate_checkpoints, load_actor,
        load_ensemble, load_ensemble_policy, load_policy, make_environment_for, observation_origin,
        open_packed_policy, original_space, pack_policy, played_observations, random_observations,
        require_spaces, rule_of,
    )
else:
    __all__, __getattr__ = exports(__name__)
