"""Signals become calls: the first one and all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from podracer_client.processes import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_and_the_second(number):
    calls: list[str] = []
    former = signal.getsignal(number)
    with Interrupts(lambda: calls.append("first"), lambda: calls.append("second")) as interrupts:
        assert not interrupts.received
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert interrupts.received
    assert calls == ["first", "second", "second"]
    assert signal.getsignal(number) == former


def test_a_shell_that_ignores_sigint_for_us_changes_nothing():
    code = (
        "import os, signal; from podracer_client.processes import Interrupts; calls = []\n"
        "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN\n"
        "with Interrupts(lambda: calls.append(1), lambda: None): os.kill(os.getpid(), "
        "signal.SIGINT)\nassert calls == [1]"
    )
    result = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code],
        timeout=60,
        check=False,
    )
    assert result.returncode == 0
