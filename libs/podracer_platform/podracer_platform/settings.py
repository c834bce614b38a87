"""Settings of a service from the environment: PODRACER_<NAME> variables -> a frozen dataclass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from podracer_core.config import Secret
from podracer_core.config.scalars import WrongValueError, alternatives, expected, from_text
from podracer_core.errors import FieldViolation, InvalidInput

T = TypeVar("T")

PREFIX = "PODRACER_"
_MAX_SECRET_BYTES = 64 << 10


def load_settings(
    settings: type[T], environment: Mapping[str, str] | None = None, *, prefix: str = PREFIX
) -> T:
    """An instance of a frozen dataclass whose field `lease_term` comes from PODRACER_LEASE_TERM.

    Fields are int, float, bool, str, Path, Seconds, ByteSize, Secret, Literal, enums, tuples of
    these (separated by commas), or one of them `| None`. A variable that is unset or empty leaves
    the default. A Secret may also come from the file that `<NAME>_FILE` names.

    Raises InvalidInput with every variable that has a wrong value, or has none and needs one.
    """
    environment = os.environ if environment is None else environment
    kinds = get_type_hints(settings, include_extras=True)
    values: dict[str, Any] = {}
    violations: list[FieldViolation] = []
    for field in fields(settings):  # type: ignore[arg-type]
        name, kind = prefix + field.name.upper(), kinds[field.name]
        try:
            text = (
                _secret_text(name, environment)
                if Secret in alternatives(kind)
                else environment.get(name, "")
            )
            if text:
                values[field.name] = from_text(kind, text)
            elif field.default is MISSING and field.default_factory is MISSING:
                violations.append(FieldViolation(name, f"is not set; expected {expected(kind)}"))
        except WrongValueError as error:
            got = "something else" if Secret in alternatives(kind) else repr(text)
            violations.append(FieldViolation(name, f"{error}, got {got}"))
        except InvalidInput as error:
            violations.append(FieldViolation(name, error.message))
    if violations:
        message = "; ".join(f"{violation.field}: {violation.message}" for violation in violations)
        raise InvalidInput(message, violations=violations, reason="INVALID_SETTING")
    return settings(**values)


def _secret_text(name: str, environment: Mapping[str, str]) -> str:
    text, path = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if text and path:
        raise InvalidInput(f"is set, and so is {name}_FILE; expected one of them")
    if not path:
        return text
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(_MAX_SECRET_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read the file {path!r} of {name}_FILE: {type(error).__name__}"
        ) from error
