"""Videos of candidates, filmed on request by an evaluator beside the page's process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_client.jobs.client import Client
from podracer_client.local.state_folder import StateFolder
from podracer_client.names import short_name
from podracer_client.policies.folders import MANIFEST
from podracer_client.policies.recording import film
from podracer_client.servers.connection import DEFAULT_FOLDER
from podracer_core.errors import Exhausted, NotFound

KEPT = 16


class Videos:
    """Films one video at a time, and keeps the newest KEPT. `state_folder` as in `film`."""

    def __init__(self, state_folder: Path | None) -> None:
        self._state_folder = state_folder or DEFAULT_FOLDER
        self._films: dict[str, tuple[str, str]] = {}  # by the checkpoint's prefix; the oldest first
        self._turn = threading.Lock()

    def film(self, client: Client, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The video of `agent`'s snapshot on the leaderboard of `job`, and its caption.

        Raises NotFound if the agent is not ranked, Exhausted while another one is filmed, and the
        errors of `film`."""
        job, agent = (str(asked.get(name, "")) for name in ("job", "agent"))
        board = client.leaderboard(client.job(job).message.leaderboard)
        found = next(
            (each for each in board.candidates if short_name(each.agent.name) == agent), None
        )
        if found is None:
            raise NotFound(f"{agent} is not on the leaderboard")
        prefix = found.evaluation.checkpoint.prefix
        if prefix not in self._films:
            if not self._turn.acquire(blocking=False):
                raise Exhausted(
                    "another video is being filmed; try again once it is there", reason="FILMING"
                )
            here = StateFolder.objects_of(self._state_folder) / prefix
            name = f"{found.agent.name}/checkpoints/{short_name(prefix.rstrip('/'))}"
            try:
                policy = str(here) if (here / MANIFEST).is_file() else name
                self._films[prefix] = film(policy, client, self._state_folder)
            finally:
                self._turn.release()
        video, text = self._films[prefix]
        for oldest in list(self._films)[:-KEPT]:
            del self._films[oldest]
        return {
            "video": video,
            "text": f"after {found.evaluation.env_steps:,} training steps: {text}",
        }
