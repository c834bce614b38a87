"""Checkpoints of one agent: tensors by group in an object store, the manifest last.

objects       save_checkpoint, load_checkpoint, open_checkpoint_folder
policy        a policy from a checkpoint: load_actor, load_policy; as a file: pack_policy,
              open_packed_policy
ensemble      several policies as one: load_ensemble, load_ensemble_policy
evaluation    greedy episodes: evaluate_checkpoints; observations to try a policy on:
              played_observations
export        a policy for use without Podracer: export_policy, export_ensemble; export_formats: its
              files
"""

from podracer_core.checkpoint.ensemble import load_ensemble, load_ensemble_policy, rule_of
from podracer_core.checkpoint.evaluation import evaluate_checkpoints, played_observations
from podracer_core.checkpoint.export import export_ensemble, export_policy
from podracer_core.checkpoint.objects import (
    Checkpoint,
    load_checkpoint,
    load_packed_checkpoint,
    open_checkpoint_folder,
    save_checkpoint,
)
from podracer_core.checkpoint.policy import (
    POLICY_GROUPS,
    load_actor,
    load_policy,
    open_packed_policy,
    pack_policy,
)
from podracer_core.storage.layout import CheckpointRef

__all__ = [
    "POLICY_GROUPS",
    "Checkpoint",
    "CheckpointRef",
    "evaluate_checkpoints",
    "export_ensemble",
    "export_policy",
    "load_actor",
    "load_checkpoint",
    "load_ensemble",
    "load_ensemble_policy",
    "load_packed_checkpoint",
    "load_policy",
    "open_checkpoint_folder",
    "open_packed_policy",
    "pack_policy",
    "played_observations",
    "rule_of",
    "save_checkpoint",
]
