"""Videos of policies, made by a private evaluator."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_client.display import return_text
from podracer_client.jobs import Client
from podracer_client.local import Connect, StateFolder, private_evaluator
from podracer_client.policies.environment import bring_files, changed_environment
from podracer_client.policies.evaluation import sources
from podracer_client.policies.folders import policy_folders
from podracer_client.policies.hub import require_harmless
from podracer_client.policies.pieces import write_pieces
from podracer_client.policies.trust import Trust
from podracer_client.servers import DEFAULT_FOLDER
from podracer_core.errors import DeadlineExpired, InvalidInput

FORMATS = {
    ".mp4": evaluator_service_pb2.VIDEO_FORMAT_MP4,
    ".gif": evaluator_service_pb2.VIDEO_FORMAT_GIF,
}
_TIMEOUT_S = 3600.0
_PAGE_TIMEOUT_S, _PAGE_STEPS, _PAGE_BYTES = 120.0, 1_000, 8 << 20


def record(
    policies: Sequence[str],
    output: Path,
    connect: Connect,
    state_folder: Path | None = None,
    *,
    best: int = 0,
    arguments: Mapping[str, Any] | None = None,
    only_own_code: bool = False,
    trusted: bool = False,
    timeout_s: float = _TIMEOUT_S,
    **wanted: Any,
) -> evaluator_service_pb2.VideoHeader:
    """Film one episode of policies, named as in `policy_folders`, into `output`, whose ending (a
    key of FORMATS) says in which form; `best` as there. `only_own_code`: see `film`; `trusted`: see
    `Trust`. `wanted` are more fields of RecordVideoRequest."""
    with policy_folders(policies, best, connect, state_folder) as folders:
        own = StateFolder.objects_of(state_folder or DEFAULT_FOLDER).resolve()
        if only_own_code and not folders[0].resolve().is_relative_to(own):
            require_harmless(folders[0], "the job", f"use `podracer video {policies[0]}`")
        with private_evaluator() as evaluator:
            bring_files(evaluator, folders[0], connect, Trust(state_folder, trusted))
            environment = changed_environment(folders[0], arguments or {})
            request = evaluator_service_pb2.RecordVideoRequest(
                checkpoints=sources(folders),
                environment=environment,
                format=FORMATS[output.suffix],
                **wanted,
            )
            pieces = evaluator.RecordVideo(request, timeout=timeout_s)
            header: evaluator_service_pb2.VideoHeader = write_pieces(pieces, output)
    return header


def film(policy: str, client: Client, state_folder: Path | None) -> tuple[str, str]:
    """Film a policy of the client's server, in at most two minutes, 1,000 steps and 8 MiB: a
    `data:` URL and a text.

    For pages, whose users have not named this policy: no code comes from the server. A policy that
    is not in the state folder of this machine is filmed only in environments that are installed
    here. Raises InvalidInput (UNTRUSTED_ENVIRONMENT, TOO_LARGE), DeadlineExpired, and as `record`.
    """
    limits: dict[str, Any] = {"timeout_s": _PAGE_TIMEOUT_S, "step_limit": _PAGE_STEPS}
    with tempfile.TemporaryDirectory(prefix="podracer-video-") as folder:
        output = Path(folder, "video.mp4")
        try:
            header = record(
                [policy],
                output,
                lambda: nullcontext(client),
                state_folder,
                only_own_code=True,
                **limits,
            )
        except DeadlineExpired as error:
            raise DeadlineExpired(
                f"the episode was not filmed within {_PAGE_TIMEOUT_S:g} s"
            ) from error
        if header.size_bytes > _PAGE_BYTES:
            raise InvalidInput(f"{video_text(header)} is too large for a page", reason="TOO_LARGE")
        return (
            f"data:video/mp4;base64,{base64.b64encode(output.read_bytes()).decode()}",
            video_text(header),
        )


def video_text(header: evaluator_service_pb2.VideoHeader) -> str:
    """`an episode of 500 steps, return 500.0; 48 KiB`."""
    cut = "" if header.complete else ", not to its end"
    steps = f"an episode of {header.frame_count - 1:,} steps{cut}"
    return (
        f"{steps}, return {return_text(header.episode_return)}; {header.size_bytes / 1024:,.0f} KiB"
    )
