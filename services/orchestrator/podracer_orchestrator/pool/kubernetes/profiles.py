"""Profiles of pods: an operator lists them in a file (PODRACER_POD_PROFILES); a job requests one by
name.

```json {"a100": {"nodeSelector": {"accelerator": "a100"}, "tolerations": [{"key": "a100",
"operator": "Exists"}],
          "priorityClassName": "research", "gpuResource": "nvidia.com/mig-1g.10gb"}}
```

The pod template and PODRACER_GPU_RESOURCE apply to keys that a profile omits; nodeSelector and
tolerations are added."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podracer_core.sections.pod import is_profile_name
from podracer_orchestrator.jobs.operator_file import OperatorFile

GPU_RESOURCE = "gpuResource"
_TEXTS = ("priorityClassName", "runtimeClassName", GPU_RESOURCE)
FIELDS = {"nodeSelector": dict, "tolerations": list, **dict.fromkeys(_TEXTS, str)}
_WORDS = {dict: "an object", list: "a list", str: "a text"}

Profiles = OperatorFile[Mapping[str, Any]]


def read_profiles(path: Path | None) -> Profiles:
    """The profiles of a file. Raises InvalidInput with the place of the error; the cluster checks
    the contents of the fields."""
    return OperatorFile("pod profiles", path, list(FIELDS), _checked)


def _checked(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if not is_profile_name(name):
        raise ValueError(
            f"{name!r} is no name: expected lower-case letters, digits and '-', at most 20"
        )
    for field, value in fields.items():
        if not isinstance(value, FIELDS[field]):
            raise ValueError(f"{name}: {field} is {value!r}, expected {_WORDS[FIELDS[field]]}")
    return fields
