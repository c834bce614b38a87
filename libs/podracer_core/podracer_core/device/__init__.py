"""How torch uses the processor and CUDA devices.

torch_settings   what a process that computes tells torch
cuda_graphs      work on tensors as CUDA graphs
compiler         work on tensors, compiled to few kernels
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.device import compiler, cuda_graphs
    from podracer_core.device.compiler import can_compile, compiled
    from podracer_core.device.cuda_graphs import (
        WARM_UP, CaptureFailed, Graphed, map_tensors, tensors_of,
    )
    from podracer_core.device.torch_settings import set_up_torch
else:
    __all__, __getattr__ = exports(__name__)
