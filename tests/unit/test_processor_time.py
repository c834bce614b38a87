"""Processor seconds of this process and its children."""

from __future__ import annotations

import subprocess
import sys

import pytest

from podracer_core.training import processor_seconds

BUSY_S = 0.2
BURN = f"import time\nwhile time.process_time() < {BUSY_S}: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only children that have ended count")
def test_children_count_while_they_live_and_after_their_end():
    before_s = processor_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive_s = processor_seconds() - before_s
        child.communicate(b"\n")
    assert alive_s >= BUSY_S
    assert processor_seconds() - before_s >= alive_s
