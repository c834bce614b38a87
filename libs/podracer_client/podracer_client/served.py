"""What `podracer serve` is to serve: names and where their policies are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podracer_client.names import is_checkpoint_name, is_job_name, job_name, short_name
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.rpc.resource_names import is_label

__all__ = ["Wanted", "wanted_policies"]

_NAME = re.compile(r"([A-Za-z0-9._-]{1,100})=(.+)", re.DOTALL)
_DEFAULT_NAME = "policy"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A name and what acts under it: policies as `podracer evaluate` takes them, or an alias to follow."""

    name: str
    policies: tuple[str, ...] = ()
    job: str = ""
    alias: str = ""


def wanted_policies(texts: Sequence[str]) -> list[Wanted]:
    """`[NAME=]POLICY` each; without a name it is the job's id, or `policy`. Raises InvalidInput."""
    found: dict[str, Wanted] = {}
    for text in texts:
        match = None if _is_there(text) else _NAME.fullmatch(text)
        given, source = (match[1], match[2]) if match else ("", text)
        job, at, alias = source.rpartition("@")
        follows = bool(at and is_job_name(job) and is_label(alias) and not _is_there(source))
        name = given or (short_name(job) if follows else _default_name(source))
        former = found.get(name)
        if former is not None and (follows or former.alias or not given):
            raise _refused(f"{name} is there twice; give each its own NAME=")
        if follows:
            found[name] = Wanted(name, job=job_name(job), alias=alias)
        else:
            found[name] = Wanted(name, (*(former.policies if former else ()), source))
    return list(found.values())


def _default_name(source: str) -> str:
    if not _is_there(source):
        if is_job_name(source):
            return short_name(source)
        if is_checkpoint_name(source):
            return source.split("/")[3]
    return _DEFAULT_NAME


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _refused(message: str) -> InvalidInput:
    return InvalidInput(message, violations=[FieldViolation("POLICY", message)])
