"""The environment of a job, and the cut of evaluation episodes without a time limit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, get_args

from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the object store; the reader verifies it.

    key         in the object store
    sha256      of its bytes, 64 lower-case hexadecimal digits
    size_bytes  its length
    name        of the file that it was made from, without folders; may be empty
    """

    key: str
    sha256: str
    size_bytes: int
    name: str = ""

    def __post_init__(self) -> None:
        violations = list(self._violations())
        if violations:
            raise InvalidInput(
                "; ".join(map(str, violations)),
                violations=violations,
                reason="INVALID_FILE_REFERENCE",
            )

    def _violations(self) -> list[FieldViolation]:
        found = []
        if not self.key:
            found.append(FieldViolation("key", "is missing"))
        if not _SHA256.fullmatch(self.sha256):
            found.append(FieldViolation("sha256", "expected 64 lower-case hexadecimal digits"))
        if self.size_bytes < 0:
            found.append(FieldViolation("size_bytes", f"expected 0 or more, got {self.size_bytes}"))
        if self.name and not _NAME.fullmatch(self.name):
            message = (
                f"expected letters, digits, '.', '-' and '_', at most 100, got {self.name[:100]!r}"
            )
            found.append(FieldViolation("name", message))
        return found

    @property
    def local_name(self) -> str:
        """The name of a local copy: the hash, with the ending of the format (`….csv`)."""
        return self.sha256 + "".join(PurePosixPath(self.name).suffixes[-2:])

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values: `StoredFile(**file.to_json())` is equal to it."""
        return {
            "key": self.key,
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "name": self.name,
        }


Isolation = Literal["", "process"]

CONTACT_WEIGHTS: Mapping[str, Mapping[str, float]] = {
    "Ant-v5": {"contact_cost_weight": 5e-4},
    "Humanoid-v5": {"contact_cost_weight": 5e-7},
    "HumanoidStandup-v5": {"impact_cost_weight": 5e-7},
}
"""The default arguments for the cost of contacts. A record always has them: earlier versions, whose
records have none, did not charge for contacts."""

_ENTRY_POINT = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$")


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The environment that a job names: an `id`, or the `entry_point` of the user's own class or
    function.

    id                   a built-in, a name in the entry point group `podracer.environments`, or a
                         Gymnasium id
    entry_point          "package.module:Name", called with the arguments: it returns a
                         `gymnasium.Env`, or is a `VecEnvironment` class
    code_path            a folder that is importable while the entry point is loaded, in the
                         environment's process only: one that holds packages, or a package folder
                         itself (with an `__init__.py`)
    kwargs               arguments of the constructor, JSON values
    max_episode_steps    truncates episodes; None leaves the environment's own limit
    code                 packed code in the object store; it becomes a `code_path` before the
                         environment starts
    data                 data sets by argument of the constructor: paths of files here, or files in
                         the object store, which become paths likewise
    isolation            "process": each world in a process of its own; "": several in a process
    evaluation_steps     cuts evaluation episodes where there is no time limit; None: the default
    observation_origin   subtracted in float64 from the first numbers of a flat observation, before
                         they become float32
    network              its processes may open connections
    """

    id: str = ""
    entry_point: str = ""
    code_path: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    code: StoredFile | None = None
    data: Mapping[str, str | StoredFile] = field(default_factory=dict)
    isolation: Isolation = ""
    evaluation_steps: int | None = None
    observation_origin: tuple[float, ...] = ()
    network: bool = False

    def __post_init__(self) -> None:
        violations = list(self._violations())
        if violations:
            raise InvalidInput(
                "; ".join(str(violation) for violation in violations), violations=violations
            )

    def _violations(self) -> Iterator[FieldViolation]:
        if bool(self.id) == bool(self.entry_point):
            yield FieldViolation("environment", "give either an id or an entry_point")
        if self.entry_point and not _ENTRY_POINT.match(self.entry_point):
            message = f"{self.entry_point!r} is not of the form package.module:Name"
            yield FieldViolation("environment.entry_point", message)
        if (self.code_path or self.code) and not self.entry_point:
            yield FieldViolation("environment.code", "needs an entry_point")
        if self.code_path and self.code:
            yield FieldViolation(
                "environment.code", "give either packed code or a folder, not both"
            )
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            message = f"must be at least 1, not {self.max_episode_steps}"
            yield FieldViolation("environment.max_episode_steps", message)
        if self.isolation not in get_args(Isolation):
            yield FieldViolation(
                "environment.isolation", f"expected process or nothing, got {self.isolation!r:.100}"
            )
        try:
            json.dumps(dict(self.kwargs), allow_nan=False)
        except (TypeError, ValueError) as error:
            ways = "in a notebook a function can hold others: lambda: MyEnvironment(table)"
            yield FieldViolation("environment.kwargs", f"must be JSON values: {error}; {ways}")
        for name in self.data:
            if not name.isidentifier():
                yield FieldViolation(f"data.{name}", "is not the name of an argument")
            elif name in self.kwargs:
                yield FieldViolation(
                    f"data.{name}", f"is also in environment.kwargs: give {name} once"
                )

    @property
    def shared_state_warning(self) -> str:
        """What to tell people of worlds that share state."""
        return (
            f"worlds of {self.name} in one process share state, so each runs in a process of its "
            "own now, which is slower: keep state in self, and random numbers in self.np_random, "
            "to avoid that"
        )

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.id or self.entry_point

    @property
    def stored_files(self) -> tuple[StoredFile, ...]:
        """The files to fetch before it can be started; empty if all are local."""
        data = (file for file in self.data.values() if isinstance(file, StoredFile))
        return (*data,) if self.code is None else (self.code, *data)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor: `kwargs`, and the path of each data set.

        Raises PreconditionFailed (FILES_MISSING) if a file is still in the object store.
        """
        if self.stored_files:
            raise PreconditionFailed(
                f"{self.name} needs files that are still in the object store",
                reason="FILES_MISSING",
            )
        return {**self.kwargs, **self.data}

    def to_json(self) -> dict[str, Any]:
        """The JSON values for the environment's own process; `kwargs`: all of its `arguments`;
        `code_path`: for its import path. Raises as `arguments`."""
        return {
            "id": self.id,
            "entry_point": self.entry_point,
            "code_path": self._import_path,
            "kwargs": self.arguments,
            "max_episode_steps": self.max_episode_steps,
            "observation_origin": self.observation_origin,
        }

    def to_metadata(self) -> dict[str, Any]:
        """The JSON values for a checkpoint's metadata; `from_metadata` is the inverse."""
        data = {
            name: file.to_json() if isinstance(file, StoredFile) else file
            for name, file in self.data.items()
        }
        return (
            {
                "id": self.id,
                "entry_point": self.entry_point,
                "code_path": self.code_path,
                "kwargs": {**CONTACT_WEIGHTS.get(self.id, {}), **self.kwargs},
                "max_episode_steps": self.max_episode_steps,
                "code": None if self.code is None else self.code.to_json(),
                "data": data,
            }
            | ({"isolation": self.isolation} if self.isolation else {})
            | ({"network": True} if self.network else {})
            | ({} if self.evaluation_steps is None else {"evaluation_steps": self.evaluation_steps})
            | (
                {"observation_origin": list(self.observation_origin)}
                if self.observation_origin
                else {}
            )
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """The inverse of `to_metadata`. Raises InvalidInput or TypeError for other values."""
        values = dict(metadata)
        former = dict.fromkeys(CONTACT_WEIGHTS.get(values.get("id", ""), {}), 0.0)
        values["kwargs"] = {**former, **values.get("kwargs", {})}
        code, data = values.pop("code", None), values.pop("data", {})
        values["observation_origin"] = tuple(values.get("observation_origin", ()))
        return cls(
            **values,
            code=None if code is None else StoredFile(**code),
            data={
                name: file if isinstance(file, str) else StoredFile(**file)
                for name, file in data.items()
            },
        )

    @property
    def _import_path(self) -> str:
        is_package = bool(self.code_path) and Path(self.code_path, "__init__.py").is_file()
        return str(Path(self.code_path).absolute().parent) if is_package else self.code_path


MOST_EPISODE_STEPS = 10_000
_LEAST_EPISODE_STEPS = 100
_BUDGET_PART = 10  # a full evaluation takes at most such a part of the budget


def evaluation_steps(
    episodes: int, env_steps: int | None = None, seconds: float | None = None, step_s: float = 0.0
) -> int:
    """The steps after which evaluation cuts an episode: as many as a tenth of the budget pays for
    `episodes` times.

    At least 100, at most 10,000. env_steps, seconds: the budget; None: no limit. step_s: seconds of
    a step in one environment; 0: unknown."""
    paid = math.inf if env_steps is None else env_steps / _BUDGET_PART / episodes
    if seconds is not None and step_s > 0.0:
        paid = min(paid, seconds / _BUDGET_PART / episodes / step_s)
    return int(max(_LEAST_EPISODE_STEPS, min(paid, MOST_EPISODE_STEPS)))


def cut_warning(environment: str, steps: int) -> str:
    """What people are told of the cut."""
    return (
        f"{environment} has no time limit: evaluation ends episodes after {steps:,} steps; "
        "pass max_episode_steps"
    )
