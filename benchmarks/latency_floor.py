"""How soon any server of one thread answers on this machine: what benchmarks/policy_server.py is to
be read against.

A server on a TCP socket does nothing but work for a fixed time on each request, of processor time,
so what other programs take from it does not count as work. Requests come as in open_load.py: at
random times, whether former ones have been answered or not; a latency counts from the time at which
its request was due."""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
from report import finish, print_table, spread, versions

RATES = (100.0, 500.0)
WORK_MS = (0.0, 0.3, 0.7, 1.4)
NUMBER = struct.Struct("q")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each once, a few seconds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a measurement")
    parser.add_argument("--serve", type=float, metavar="MS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    if options.quick:
        options.repeats, options.seconds = 1, 4.0
    print(versions("numpy"), flush=True)
    found: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for repeat in range(options.repeats):
        for rate in RATES:
            for work_ms in WORK_MS:
                latencies = measured(rate, work_ms, options.seconds, repeat)
                p50, p99 = (float(np.quantile(latencies, share)) for share in (0.5, 0.99))
                found.setdefault((rate, work_ms), []).append((p50, p99))
    rows = [
        [f"{rate:g}/s", work_ms, *map(spread, zip(*runs, strict=True))]
        for (rate, work_ms), runs in found.items()
    ]
    print_table(
        "A server that only works, ms from the time that each was due",
        ["load", "work", "p50", "p99"],
        rows,
    )
    figures = {
        f"p99_ms_at_{rate:g}_with_{work_ms:g}_ms": statistics.median(p99 for _, p99 in runs)
        for (rate, work_ms), runs in found.items()
    }
    finish("latency_floor", figures, {})


def serve(work_ms: float) -> None:
    """Answer each number of one connection with itself, after so much work; until it is closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        for number in numbers(connection):
            end_s = time.thread_time() + work_ms / 1000
            while time.thread_time() < end_s:
                pass
            connection.sendall(number)


def numbers(connection: socket.socket) -> Iterator[bytes]:
    """The bytes of each number that comes."""
    waiting = b""
    while part := connection.recv(65536):
        waiting += part
        while len(waiting) >= NUMBER.size:
            number, waiting = waiting[: NUMBER.size], waiting[NUMBER.size :]
            yield number


def measured(rate: float, work_ms: float, seconds: float, seed: int) -> list[float]:
    """Latencies in ms."""
    generator, clock, dues = random.Random(seed), 0.0, []
    while clock < seconds:
        dues.append(clock)
        clock += generator.expovariate(rate)
    command = [sys.executable, __file__, "--serve", str(work_ms)]
    latencies: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as connection:
            connection.settimeout(60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.perf_counter()

            def listen() -> None:
                for number in numbers(connection):
                    latencies.append(
                        1000 * (time.perf_counter() - start - dues[NUMBER.unpack(number)[0]])
                    )
                    if len(latencies) == len(dues):
                        return

            listening = threading.Thread(target=listen)
            listening.start()
            for place, due in enumerate(dues):
                if (wait := start + due - time.perf_counter()) > 0:
                    time.sleep(wait)
                connection.sendall(NUMBER.pack(place))
            listening.join()
    if len(latencies) < len(dues):
        raise SystemExit(
            f"{len(dues) - len(latencies)} of {len(dues)} requests were not answered within 60 s"
        )
    return latencies


if __name__ == "__main__":
    main()
