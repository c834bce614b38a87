"""`python -m podracer_platform.rpc.probe ADDRESS [SERVICE]`: the health of a process, for container
engines.

ADDRESS is that of its PODRACER_HEALTH_LISTEN; SERVICE `liveness`, or left out for readiness. Exit
status 0 where it serves, else 1, with one line that says why."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2

from podracer_core.errors import InvalidInput
from podracer_platform.rpc.address import parse_address

TIMEOUT_S = 3.0


def probe(address: str, service: str = "") -> str:
    """`SERVING`, or another status, or why there is none."""
    try:
        target = str(parse_address(address))
    except InvalidInput as error:
        return error.message
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(target, options) as channel:
        try:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return (
                    f"there is no service {service!r}: expected liveness, or nothing for readiness"
                )
            return f"{error.code().name}: {error.details()}"
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def main(arguments: Sequence[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write("usage: python -m podracer_platform.rpc.probe ADDRESS [SERVICE]\n")
        return 1
    answer = probe(*arguments)
    sys.stdout.write(f"{arguments[0]}: {answer}\n")
    return 0 if answer == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
