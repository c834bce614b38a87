"""An environment that tries every path that it can see. What has worked is in the error that it
raises."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

_library = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {  # x86_64, aarch64
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "unshare": (272, 97), "mount": (165, 40),
    "setns": (308, 268), "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "kexec_load": (246, 104), "io_uring_setup": (425, 425), "pidfd_getfd": (438, 438),
    "chroot": (161, 51), "pivot_root": (155, 41), "open_by_handle_at": (304, 265),
}  # fmt: skip
_COLUMN = 0 if os.uname().machine == "x86_64" else 1
_NEW_USER = 0x1000_0000


class RedTeam(gymnasium.Env[Any, Any]):
    """`secrets`: files that hold a secret; `folders`: where it must not write; `server`: the
    process that started it, if not its parent; `addresses`, `socket_path`, `abstract`: of servers
    that listen."""

    def __init__(
        self,
        secrets: list[str],
        folders: list[str],
        addresses: list[str],
        socket_path: str,
        abstract: str,
        own: str,
        server: int = 0,
    ) -> None:
        self.loot: list[str] = []
        server = server or os.getppid()
        self._reads([*secrets, "/etc/shadow", "/proc/1/environ", "/dev/mem"])
        self._lists(
            [
                *folders,
                "/",
                "/home",
                "/root",
                "/tmp",
                "/var",
                "/run",
                "/etc",
                "/proc",
                "/dev",
                "/dev/shm",
            ]
        )
        self._processes({server, os.getppid(), 1})
        self._writes(
            [
                *folders,
                "/tmp",
                "/dev/shm",
                "/var/tmp",
                str(Path(__file__).parent),
                str(Path.home().parent),
            ]
        )
        self._changes([*secrets, own], socket_path)
        self._connects(addresses, socket_path, abstract)
        self._system_calls(server)
        self._descriptors()
        self._environment()
        self._daemons(own)
        raise ValueError("loot: " + json.dumps(self.loot))

    def _try(self, what: str, act: Callable[[], Any]) -> None:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            act()
            self.loot.append(what)

    def _reads(self, paths: list[str]) -> None:
        for path in paths:
            self._try(f"read {path}", Path(path).read_bytes)
            self._try(f"link {path}", partial(os.link, path, Path(tempfile.gettempdir(), "linked")))
            self._try(
                f"read by a child {path}",
                partial(subprocess.check_output, ["cat", path], stderr=-3),
            )

    def _lists(self, folders: list[str]) -> None:
        for folder in folders:
            self._try(f"list {folder}", partial(os.listdir, folder))

    def _processes(self, pids: set[int]) -> None:
        for pid in pids:
            for name in ("environ", "mem", "maps", "cmdline", "status", "auxv", "stack"):
                self._try(f"/proc/{pid}/{name}", partial(_first_byte, f"/proc/{pid}/{name}"))
            for name in ("cwd", "root", "exe"):
                self._try(f"/proc/{pid}/{name}", partial(os.readlink, f"/proc/{pid}/{name}"))
            self._try(f"/proc/{pid}/fd", partial(os.listdir, f"/proc/{pid}/fd"))
            self._try(f"signal to {pid}", partial(os.kill, pid, signal.SIGCONT))

    def _writes(self, folders: list[str]) -> None:
        for folder in folders:
            self._try(
                f"write {folder}",
                partial(Path(folder, "planted.py").write_text, "raise SystemExit"),
            )
            self._try(f"mkdir {folder}", Path(folder, "planted").mkdir)
            self._try(f"socket {folder}", partial(_listen, f"{folder}/planted.sock"))

    def _changes(self, paths: list[str], socket_path: str) -> None:
        for path in paths:
            self._try(f"cut {path}", partial(os.truncate, path, 0))
            self._try(f"cut {path} while opening", partial(os.open, path, os.O_RDONLY | os.O_TRUNC))
            self._try(f"rename {path}", partial(os.rename, path, path + ".old"))
            self._try(f"remove {path}", partial(os.unlink, path))
            with contextlib.suppress(OSError):
                Path(path).chmod(0o777)  # the test looks whether it has changed anything
        self._try("rename the socket", lambda: os.rename(socket_path, socket_path + ".old"))
        self._try("remove the socket", lambda: os.unlink(socket_path))

    def _connects(self, addresses: list[str], path: str, abstract: str) -> None:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            for address in addresses:
                self._try(f"IPv4 {kind} {address}", partial(_connect, kind, address))
            self._try(f"IPv6 {kind}", partial(socket.socket, socket.AF_INET6, kind))
            self._try(f"packets {kind}", partial(socket.socket, socket.AF_PACKET, kind))
        for family in (socket.AF_NETLINK, socket.AF_VSOCK, socket.AF_ALG):
            self._try(f"{family!r}", partial(socket.socket, family, socket.SOCK_DGRAM))
        self._try("unix", lambda: socket.socket(socket.AF_UNIX).connect(path))
        self._try("abstract", lambda: socket.socket(socket.AF_UNIX).connect(abstract))
        self._try(
            "datagram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", path)
        )
        self._try(
            "a pair's datagram",
            lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", path),
        )

    def _system_calls(self, server: int) -> None:
        class Span(ctypes.Structure):
            _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

        found = ctypes.create_string_buffer(8)
        here, there = Span(ctypes.addressof(found), 8), Span(id(None), 8)
        arguments: dict[str, tuple[Any, ...]] = {
            "ptrace": (16, server, 0, 0),  # PTRACE_ATTACH
            "process_vm_readv": (server, ctypes.byref(here), 1, ctypes.byref(there), 1, 0),
            "unshare": (_NEW_USER,),
            "mount": (b"none", tempfile.gettempdir().encode(), b"tmpfs", 0, 0),
            "chroot": (tempfile.gettempdir().encode(),),
            "keyctl": (0, -3, 1),  # KEYCTL_GET_KEYRING_ID of the session, made if there is none
            "add_key": (b"user", b"planted", b"x", 1, -3),
            "io_uring_setup": (4, ctypes.create_string_buffer(120)),
            "perf_event_open": (
                ctypes.create_string_buffer(b"\1\0\0\0\x70\0\0\0", 0x70),
                0,
                -1,
                -1,
                0,
            ),
            "userfaultfd": (1,),
            "bpf": (
                0,
                ctypes.create_string_buffer(bytes([2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1]), 72),
                72,
            ),
            "pidfd_getfd": (_pidfd(server), 0, 0),
        }
        for name, given in arguments.items():
            if _library.syscall(_NUMBERS[name][_COLUMN], *given) >= 0:
                self.loot.append(name)
        os.closerange(max(3, arguments["pidfd_getfd"][0]), arguments["pidfd_getfd"][0] + 1)
        child = _library.syscall((56, 220)[_COLUMN], _NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        if child > 0:
            self.loot.append("clone into a namespace")

    def _descriptors(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                place = os.readlink(f"/proc/self/fd/{name}")
                known = (
                    "pipe:",
                    "socket:",
                    "/dev/null",
                    "/memfd:podracer-environments",
                    f"/proc/{os.getpid()}",
                )
                if not place.startswith(known):
                    self.loot.append(f"descriptor {place}")

    def _environment(self) -> None:
        for name, value in os.environ.items():
            if "SECRET" in value or (
                name.startswith("PODRACER_") and name != "PODRACER_ENVIRONMENT_INDEX"
            ):
                self.loot.append(f"variable {name}")

    def _daemons(self, word: str) -> None:
        """Processes that leave the session: a daemon, and one that forks for ever."""
        forks = (
            "import os, time\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid(); "
            "time.sleep(0.001)"
        )
        for code in ("import time; time.sleep(600)", forks):
            subprocess.Popen([sys.executable, "-I", "-S", "-c", code, word], start_new_session=True)
        time.sleep(0.1)


def _first_byte(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1)


def _connect(kind: int, address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.socket(socket.AF_INET, kind).connect((host, int(port)))


def _listen(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)


def _pidfd(server: int) -> int:
    with contextlib.suppress(OSError):
        return os.pidfd_open(server)
    return -1


class Daemon(gymnasium.Env[Any, Any]):
    """Starts a process in a session of its own, with `word` in its command line."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, word: str) -> None:
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)", word], start_new_session=True
        )

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample() * 0, {}


class Honest(gymnasium.Env[Any, Any]):
    """What environments do: read their code and data, write files, start processes. `report` is in
    the observation."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, table: str) -> None:
        import multiprocessing

        assert Path(table).read_text() == "a table"
        assert "Honest" in Path(__file__).read_text()
        assert Path.cwd() == Path.home() == Path(tempfile.gettempdir())
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        Path("log.txt").write_text("x")
        Path("sub").mkdir()
        Path("log.txt").rename("sub/log.txt")
        Path("sub/log.txt").chmod(0o600)
        assert subprocess.check_output(["sh", "-c", "echo hello > out; cat out"]) == b"hello\n"
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        other = context.Process(target=_send, args=(theirs,))
        other.start()
        assert ours.recv() == 2
        other.join()
        for path in (
            "/proc/self/status",
            "/proc/self/maps",
            "/proc/cpuinfo",
            "/proc/meminfo",
            "/etc/passwd",
        ):
            assert Path(path).read_text()
        assert os.cpu_count()
        Path("/dev/null").write_text("x")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(tempfile.gettempdir() + "/own.sock")

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample() * 0, 1.0, False, False, {}


def _send(connection: Any) -> None:
    connection.send(1 + 1)


def calls_a_port(port: int) -> None:
    """An environment that wants a network."""
    socket.create_connection(("127.0.0.1", port)).close()
    raise ValueError("connected")
