"""How a process that trains, collects or evaluates uses torch."""

from __future__ import annotations

import torch


def set_up_torch(threads: int | None) -> None:
    """Threads of the CPU (None: torch's own choice), and TF32 for products and convolutions of CUDA devices alone.

    `torch.set_float32_matmul_precision` would say as much to oneDNN, and change what a CPU computes.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
