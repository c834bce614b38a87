"""Trained policies.

folders                finds the policies that a user names, here, on a server or at Hugging Face
environment            the environment of an evaluation, and whether its code may run
evaluation             evaluation by an evaluator, the result as text, and videos
serve, policy_client   serving on this machine; a client for actions (`PolicyClient`)
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_client.policies import evaluation
    from podracer_client.policies.environment import (
        Trust, bring_files, changed_environment, parsed_arguments, trained_environment,
        with_arguments,
    )
    from podracer_client.policies.evaluation import (
        evaluate_alone, evaluate_together, film, record, rule_text, sources, video_text,
        write_pieces,
    )
    from podracer_client.policies.folders import (
        MANIFEST, PREFIX, Competition, acting_files, checkpoint_folder, competing_folders,
        hub_client, is_there, parse_hub_name, policy_folders, stored_policies,
    )
    from podracer_client.policies.policy_client import PolicyClient
    from podracer_client.policies.serve import ServeOptions, Wanted, keep_serving, wanted_policies
else:
    __all__, __getattr__ = exports(__name__)
