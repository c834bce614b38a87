"""What a policy costs to serve at least: a gRPC server of threads around it, and nothing else."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import torch

from podracer.common.v1 import tensor_pb2
from podracer.policy.v1 import policy_service_pb2 as pb
from podracer.policy.v1.policy_service_pb2_grpc import (
    PolicyServiceServicer,
    add_PolicyServiceServicer_to_server,
)
from podracer_core.checkpoint import load_policy, open_packed_policy


class Bare(PolicyServiceServicer):
    def __init__(self, path: Path) -> None:
        self._policy = load_policy(open_packed_policy(path))

    def Act(self, request: pb.ActRequest, context: grpc.ServicerContext) -> pb.ActResponse:
        observation = torch.from_numpy(
            np.frombuffer(request.observations.inline, np.float32).copy()
        )
        with torch.inference_mode():
            action = self._policy(observation.unsqueeze(0))[0].numpy()
        tensor = tensor_pb2.Tensor(
            dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=list(action.shape), inline=action.tobytes()
        )
        return pb.ActResponse(actions=tensor)


if __name__ == "__main__":
    torch.set_num_threads(1)
    server = grpc.server(ThreadPoolExecutor(8))
    add_PolicyServiceServicer_to_server(Bare(Path(sys.argv[1])), server)
    print(f"listening on 127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    server.stop(1).wait()
