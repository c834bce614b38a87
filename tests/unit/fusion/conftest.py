"""What all learners of a test begin with."""

from __future__ import annotations

import pytest

from podracer_core.fusion import FusionState
from support.fusion import make_state


@pytest.fixture
def state() -> FusionState:
    """From `make_state`."""
    return make_state()
