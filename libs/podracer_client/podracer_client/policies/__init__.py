"""Trained policies.

folders                       finds the policies that a user names
hub                           policies in a repository of Hugging Face
evaluation                    evaluation by an evaluator, and the result as text
environment                   the environment of an evaluation
serve, policy_client          serving on this machine; a client for actions (`PolicyClient`)
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.policies import evaluation, recording
    from podracer_client.policies.environment import (
        bring_files, changed_environment, parsed_arguments, trained_environment, with_arguments,
    )
    from podracer_client.policies.evaluation import (
        evaluate_alone, evaluate_together, rule_text, sources,
    )
    from podracer_client.policies.folders import (
        MANIFEST, Competition, checkpoint_folder, competing_folders, is_there, policy_folders,
        stored_policies,
    )
    from podracer_client.policies.hub import PREFIX, acting_files, hub_client, parse_hub_name
    from podracer_client.policies.pieces import write_pieces
    from podracer_client.policies.policy_client import PolicyClient
    from podracer_client.policies.recording import film, record, video_text
    from podracer_client.policies.serve import ServeOptions, Wanted, keep_serving, wanted_policies
    from podracer_client.policies.trust import Trust
else:
    __all__, __getattr__ = exports(__name__)
