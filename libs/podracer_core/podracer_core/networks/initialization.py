"""Initial weights, drawn from each agent's own random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from podracer_core.random_numbers import normal, uniform


def orthogonal(keys: Tensor, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    """One (semi-)orthogonal matrix for every key: keys int64 [G] -> float32 [G, rows, columns].

    Saxe, McClelland and Ganguli, 2014 (arXiv:1312.6120): the QR decomposition of a Gaussian matrix, its signs fixed
    so that the result is uniformly distributed. Calculated in double precision on the CPU, matrix by matrix, so that a
    network's weights depend on nothing but its key.
    """
    long_side, short_side = max(rows, columns), min(rows, columns)
    counters = torch.arange(long_side * short_side)
    gaussian = normal(keys.cpu()[:, None], counters).double().view(-1, long_side, short_side)
    q, r = torch.linalg.qr(gaussian)
    q = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    if rows < columns:
        q = q.transpose(1, 2)
    weights: Tensor = (gain * q).float().contiguous()
    return weights.to(keys.device)


def uniform_fan_in(keys: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Weights float32 [G, rows, columns] and biases [G, columns] for every key, evenly within ±1 / sqrt(rows).

    What `torch.nn.Linear` draws by default (He et al., 2015, arXiv:1502.01852, with a = sqrt(5)).
    """
    counters = torch.arange(rows * columns + columns, device=keys.device)
    drawn = (2 * uniform(keys[:, None], counters) - 1) / rows**0.5
    weights, biases = drawn.split_with_sizes([rows * columns, columns], 1)
    return weights.view(-1, rows, columns), biases
