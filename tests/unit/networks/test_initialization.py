"""Orthogonal weights that belong to the agent."""

from __future__ import annotations

import pytest
import torch

from podracer_core.networks import orthogonal


@pytest.mark.parametrize(("rows", "columns"), [(4, 64), (64, 64), (64, 2), (3, 3)])
def test_rows_or_columns_are_orthonormal(rows, columns):
    weights = orthogonal(torch.arange(5), rows, columns, gain=2.0)
    assert weights.shape == (5, rows, columns)
    small = weights if rows < columns else weights.transpose(1, 2)
    identity = torch.eye(min(rows, columns)).expand(5, -1, -1)
    torch.testing.assert_close(small @ small.transpose(1, 2), 4.0 * identity, rtol=1e-5, atol=1e-5)


def test_weights_depend_on_the_key_alone():
    alone = orthogonal(torch.tensor([7]), 6, 9)
    among_others = orthogonal(torch.tensor([1, 7, 3]), 6, 9)
    assert torch.equal(alone[0], among_others[1])
    assert not torch.allclose(among_others[0], among_others[1])
