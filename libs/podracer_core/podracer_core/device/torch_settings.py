"""How a process that trains, collects or evaluates uses torch."""

from __future__ import annotations

from typing import Literal

import torch


def set_up_torch(threads: int | None, cpu_products: Literal["float32", "bf16"] = "float32") -> None:
    """Threads of the CPU (None: torch's own choice), and TF32 for products and convolutions of CUDA
    devices alone.

    With bf16 oneDNN may round the factors of a CPU's float32 products to bfloat16. It does so where
    the processor has AMX; elsewhere nothing changes. `torch.set_float32_matmul_precision` would
    decide for a GPU and a CPU at once."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    if cpu_products == "bf16":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
