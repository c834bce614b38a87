"""What a service's child process with user code may do, and what this machine lacks to hold it to
that.

It reads Python, the installed packages, its own code and data and what libraries need of the
system; it writes into one empty folder, its working folder, TMPDIR and HOME. It has no network,
unless its job says so, and no way to the memory, the files or the sockets of other processes.
`launcher` holds it to that."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from podracer_core.box.launcher import (
    CLOSED,
    NETWORK,
    has_seccomp,
    landlock_version,
)
from podracer_core.catalogue import EnvironmentSpec

logger = logging.getLogger(__name__)

_FOLDERS = (
    "/usr /bin /sbin /lib /lib32 /lib64 /sys /nix/store /var/cache/fontconfig /proc/driver/nvidia"
)
_ETC = (
    "ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone passwd group "
    "nsswitch.conf host.conf hosts resolv.conf gai.conf protocols services os-release ssl/certs "
    "ssl/openssl.cnf ca-certificates pki/tls mime.types fonts glvnd vulkan OpenCL egl drirc"
)
_PROC = "cpuinfo meminfo stat loadavg uptime version filesystems devices sys/vm sys/kernel"
_DEVICES = "null zero full random urandom dri kfd dxg"


def missing() -> list[str]:
    """What this machine lacks for a whole box."""
    version = landlock_version()
    found = {
        "Landlock (Linux 5.13), which shuts files": version >= 1,
        "Landlock 3 (Linux 6.2), which refuses to cut readable files": version == 0 or version >= 3,
        "Landlock 6 (Linux 6.12), which refuses signals to other processes": version == 0
        or version >= 6,
        "seccomp, which refuses the network and dangerous calls": has_seccomp(),
    }
    return [what for what, there in found.items() if not there]


_has_warned = threading.Lock()  # held from the first warning on


def warn_once() -> None:
    """Log what is missing; several threads begin at once."""
    if _has_warned.acquire(blocking=False) and (lacks := missing()):
        logger.warning(
            "users' code is not shut in completely: this machine lacks %s", "; ".join(lacks)
        )


def box_for(spec: EnvironmentSpec, folder: str) -> tuple[str, str, str, str]:
    """The launcher's BOX, FOLDER, READABLE and USABLE for an environment."""
    warn_once()
    own = [spec.code_path, *(value for value in spec.data.values() if isinstance(value, str))]
    system = [
        *_FOLDERS.split(),
        *(f"/etc/{name}" for name in _ETC.split()),
        *(f"/proc/{name}" for name in _PROC.split()),
    ]
    found = [*system, *_python(), *own, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    readable = dict.fromkeys(
        path for each in found if each for path in (each, os.path.realpath(each)) if path != "/"
    )
    devices = [f"/dev/{name}" for name in _DEVICES.split()] + [
        str(path) for path in Path("/dev").glob("nvidia*")
    ]
    return (
        NETWORK if spec.network else CLOSED,
        folder,
        os.pathsep.join(readable),
        os.pathsep.join(devices),
    )


@functools.cache
def _python() -> tuple[str, ...]:
    """The places of this interpreter and its modules, editable installations included."""
    # a script's own folder is not the child's
    paths = sys.path if sys.flags.safe_path else sys.path[1:]
    finders: list[Any] = [
        sys.modules.get(getattr(finder, "__module__", "")) for finder in sys.meta_path
    ]
    editable = [place for finder in finders for place in getattr(finder, "MAPPING", {}).values()]
    own = [
        sys.prefix,
        sys.base_prefix,
        str(Path(sys.executable).resolve().parent),
        str(Path(__file__).parents[3]),
    ]
    return (*own, *editable, *(path for path in paths if path and Path(path).exists()))
