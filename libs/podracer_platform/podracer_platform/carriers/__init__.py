"""How tensors cross between processes.

inline        in messages: always works
slots         by memory that both have mapped: shared, or CUDA's (cuda_ipc)
negotiation   which carrier a stream uses
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_platform.carriers import cuda_ipc, negotiation
    from podracer_platform.carriers.cuda_ipc import (
        HANDLE_BYTES, CudaIpc, DeviceMemory, RuntimeMemory, device_uuid,
    )
    from podracer_platform.carriers.inline import (
        CHUNK_BYTES, TensorDecoder, TensorEncoder, chunk_messages, decode_tensor, encode_tensor,
    )
    from podracer_platform.carriers.negotiation import (
        CarrierOffering, Endpoint, Payload, carrier_name, choose,
    )
    from podracer_platform.carriers.slots import (
        ALIGNMENT_BYTES, CARRIER_FAILED, INLINE_BELOW_BYTES, MAX_TENSORS, CarrierFailed, Place,
        SharedMemory, SlotLayout, SlotReader, SlotTable, SlotWriter, Staging,
    )
else:
    __all__, __getattr__ = exports(__name__)
