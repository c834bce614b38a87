"""Checkpoints of one agent: tensors by group in an object store, the manifest last.

save     save_checkpoint
load     load_checkpoint, open_checkpoint_folder
policy   what acts, from the checkpoint alone: load_actor, load_policy
export   a policy for use with torch alone: export_policy
"""

from podracer_core.checkpoint.export import export_policy
from podracer_core.checkpoint.load import Checkpoint, load_checkpoint, open_checkpoint_folder
from podracer_core.checkpoint.policy import POLICY_GROUPS, load_actor, load_policy
from podracer_core.checkpoint.save import save_checkpoint
from podracer_core.storage.layout import CheckpointRef

__all__ = [
    "POLICY_GROUPS",
    "Checkpoint",
    "CheckpointRef",
    "export_policy",
    "load_actor",
    "load_checkpoint",
    "load_policy",
    "open_checkpoint_folder",
    "save_checkpoint",
]
