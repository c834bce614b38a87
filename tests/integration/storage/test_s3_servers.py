"""The S3 servers of these tests."""

from __future__ import annotations

import pytest

from support.s3_server import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_on_path(name):
    """Elsewhere a missing server is left out in silence."""
    program = PROGRAMS[name]
    if program.path is None:
        pytest.skip(
            f"nothing runs against {program.command}, which is not on PATH; to get it: "
            f"{program.had_by}"
        )
