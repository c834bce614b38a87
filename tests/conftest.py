"""For all tests: none uses its user's contexts (`podracer context`), or another test's audit log;
what needs a CUDA device is skipped without. A busy machine fails no property test: examples may
take any time."""

from __future__ import annotations

import logging
import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("podracer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("podracer")
# of tests side by side; those that wait for each other's cores crawl
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["XDG_CONFIG_HOME"] = f"{tempfile.gettempdir()}/podracer-tests-config"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # late: most selections do without

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_runtest_teardown() -> None:
    logging.getLogger("podracer.audit").handlers.clear()
