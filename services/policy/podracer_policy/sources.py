"""PODRACER_POLICIES: what is served from the start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer_core.checkpoint import POLICY_GROUPS, Checkpoint, open_checkpoint_folder
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.rpc.resource_names import LABEL
from podracer_core.serving import ServedPolicy
from podracer_core.serving.policy import require_word

__all__ = ["Alias", "Folders", "default_version", "parse_sources"]

_ALIAS = re.compile(rf"(projects/{LABEL})/jobs/({LABEL})@({LABEL})")
_UNWORDLY = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Alias:
    """A followed alias of a job's leaderboard, under a name."""

    name: str
    leaderboard: str
    alias: str
    source: str


@dataclass(frozen=True, slots=True)
class Folders:
    """Checkpoints that act under a name, the best first."""

    name: str
    paths: tuple[Path, ...]

    def load(self, rule: str = "") -> ServedPolicy:
        """Raises InvalidInput where a folder holds no policy, or they cannot act together; DataCorrupted."""
        checkpoints = [open_checkpoint_folder(path, POLICY_GROUPS) for path in self.paths]
        source = ", ".join(map(str, self.paths))
        one = rule if len(checkpoints) > 1 else ""
        return ServedPolicy(self.name, default_version(checkpoints), checkpoints, one, source)


def parse_sources(entries: Sequence[str]) -> tuple[list[Folders], list[Alias]]:
    """NAME=SOURCE each. Raises InvalidInput, naming the entry."""
    folders: dict[str, list[Path]] = {}
    aliases: dict[str, Alias] = {}
    for entry in entries:
        name, separator, source = entry.partition("=")
        if not separator or not source:
            raise _refused(f"expected NAME=FOLDER or NAME=projects/p/jobs/j@alias, got {entry[:200]!r}")
        require_word("PODRACER_POLICIES", name)
        if match := _ALIAS.fullmatch(source):
            if name in aliases or name in folders:
                raise _refused(f"{name} is there twice; an alias is followed alone")
            aliases[name] = Alias(name, f"{match[1]}/leaderboards/{match[2]}", match[3], source)
        elif name in aliases:
            raise _refused(f"{name} is there twice; an alias is followed alone")
        else:
            folders.setdefault(name, []).append(Path(source))
    return [Folders(name, tuple(paths)) for name, paths in folders.items()], list(aliases.values())


def default_version(checkpoints: Sequence[Checkpoint]) -> str:
    """From what the first says of itself: `a0003-204800`, and how many act with it."""
    metadata = checkpoints[0].metadata
    agent = str(metadata.get("agent", "")).rpartition("/")[2] or "policy"
    more = f"-and-{len(checkpoints) - 1}" if len(checkpoints) > 1 else ""
    return _UNWORDLY.sub("-", f"{agent[:60]}-{metadata.get('env_steps', 0)}{more}")[:100]


def _refused(problem: str) -> InvalidInput:
    field = "PODRACER_POLICIES"
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)], reason="INVALID_SETTING")
