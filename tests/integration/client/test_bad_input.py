"""Every mistake gives one clear message, exit code 2, and creates nothing."""

from __future__ import annotations

import pytest

from support.commands import run_here

GOOD = """
name: job
environment: {id: CartPole-v1}
objective: {target_return: 475, max_duration: 1m}
"""

BAD_FILES = {
    "unknown key": (GOOD + "objektive: 3\n", ["job.yaml:5", "objektive", "objective"]),
    "missing key": ("name: job\n", ["environment", "objective"]),
    "not YAML": ("name: [\n", ["job.yaml:", "YAML"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_job_file(case, tmp_path):
    text, expected = BAD_FILES[case]
    (tmp_path / "job.yaml").write_text(text)
    command = run_here("run", "job.yaml", "--plain", cwd=tmp_path)
    assert command.returncode == 2, command.stderr
    for part in expected:
        assert part in command.stderr, command.stderr
    assert "Traceback" not in command.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "folder.yaml").mkdir()
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(100 << 20)
    for name in ("missing.yaml", "binary.yaml", "folder.yaml", "huge.yaml"):
        command = run_here("run", name, "--plain", cwd=tmp_path)
        assert command.returncode == 2
        assert name in command.stderr
        assert "Traceback" not in command.stderr
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "job.yaml").write_text(GOOD)
    (tmp_path / "file").write_text("in the way")
    command = run_here(
        "run", "job.yaml", "--plain", "--dir", tmp_path / "file" / "runs", cwd=tmp_path
    )
    assert command.returncode == 2
    assert str(tmp_path / "file") in command.stderr
    assert "Traceback" not in command.stderr
