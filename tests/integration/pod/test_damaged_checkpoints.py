"""Checkpoints that were truncated, altered, exchanged or removed are refused by name, before
anything is trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def truncate(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path, _: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def remove(file: Path, _: Path) -> None:
    file.unlink()


def empty(file: Path, _: Path) -> None:
    file.write_bytes(b"")


def exchange(file: Path, other: Path) -> None:
    shutil.copyfile(other, file)


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        *((damage, "manifest.json") for damage in (truncate, flip_a_bit, remove, empty, exchange)),
        *((damage, "actor.safetensors") for damage in (truncate, flip_a_bit, remove, exchange)),
        (flip_a_bit, "random.safetensors"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(fused, train_work, damage, file):
    first = fused.orchestrator.offer(train=train_work(steps=128))
    assert first.over.wait(60)
    references = [member.final.checkpoint for member in first.completed.train.members]
    damaged, other = (fused.store_folder / reference.prefix / file for reference in references)
    damage(damaged, other)
    work = train_work(steps=128)
    for agent, reference in zip(work.cohort.members, references, strict=True):
        agent.resume.CopyFrom(reference)
    granted = fused.orchestrator.offer(train=work)
    assert granted.over.wait(60)
    problem = granted.completed.problem
    assert problem.reason == "DATA_CORRUPTED"
    assert problem.subject == f"{references[0].prefix}{file}"
    assert problem.subject in problem.message
    assert not granted.commits
