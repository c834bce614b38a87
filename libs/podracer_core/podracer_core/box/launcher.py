"""Starts a process in a box that it cannot leave, and ends everything that it has started when it
ends.

    python -I -S -c START FOLDER_OF_THIS_FILE LIFELINE DESCRIPTORS BOX FOLDER READABLE USABLE \\
        COMMAND…

It stays as the parent of whatever loses its own (a subreaper) until COMMAND ends or LIFELINE, a
pipe, is closed; then it kills all of them, removes FOLDER, and ends as COMMAND has ended. BOX is
CLOSED, NETWORK, or "" for none. What this kernel lacks is left out (`box.missing`); what it has and
refuses is an error. Each environment waits for this script, so it imports little, and is imported
itself: a script would be compiled each time."""

import ctypes
import os
import select
import struct
import time

START = (
    "import sys; sys.path.append(sys.argv.pop(1)); import launcher; launcher.main(*sys.argv[1:])"
)
CLOSED, NETWORK = "closed", "network"
IN_BOX = "USER_CODE_BOX"
"""The variable of a process in a box."""
_KILL, _DEFAULT, _IGNORE = 9, 0, 1
_EPERM, _EACCES, _ENOSYS, _PRETEND = 1, 13, 38, 0
_DEATH_SIGNAL, _DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ, _USE, _OF_FILES, _ALL = 0b1101, 0b1000_0000_0000_1111, 0b1100_0000_0000_0111, 0xFFFF
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by version of Landlock; then 16
_REFUSED = {  # x86_64, aarch64; numbers above 424 are the same
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "syslog": (103, 116), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "open_by_handle_at": (304, 265), "truncate": (76, 45),
    "io_uring": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "mount_setattr": (442, 442),
}  # fmt: skip
_MODES = ((90, 52), (91, 53), (92, 54), (93, 55), (94, 54), (260, 54), (268, 53), (452, 452))
"""chmod and chown. Landlock lets them pass for all files of this user, and whoever copies a file
calls them."""
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_CONNECT = (42, 203)
_CLONE = (56, 220)
_IOCTL = (16, 29)
_CLONE3, _OPENAT2 = 435, 437
_NAMESPACES, _TIOCSTI, _STREAM = 0x7E02_0080, 0x5412, 1
_UNIX, _FAMILIES = 1, (1, 2, 10, 16)  # with a network: unix, IPv4, IPv6, and netlink for look-ups
# column, architecture, seccomp(2)
_MACHINES = {"x86_64": (0, 0xC000_003E, 317), "aarch64": (1, 0xC000_00B7, 277)}
_IS_LINUX = os.uname().sysname == "Linux"
_library = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The version of this kernel's Landlock; 0 without it."""
    return (
        max(0, int(_library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))
        if _IS_LINUX
        else 0
    )


def has_seccomp() -> bool:
    """Whether system calls can be refused, on a processor whose numbers are known here."""
    machine, refusal = _MACHINES.get(os.uname().machine), ctypes.c_uint32(0x0005_0000)
    return (
        _IS_LINUX
        and machine is not None
        and _library.syscall(machine[2], 2, 0, ctypes.byref(refusal)) == 0
    )


def _set(number: int, value: int) -> None:
    """prctl(2)."""
    _require(_library.prctl(number, value, 0, 0, 0), f"prctl {number}")


def main(
    lifeline: str,
    descriptors: str,
    box: str,
    folder: str,
    readable: str,
    usable: str,
    *command: str,
) -> None:
    """See the module."""
    _set(_SUBREAPER, 1)
    launcher, child = os.getpid(), os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            _set(_DEATH_SIGNAL, _KILL)
            if os.getppid() == launcher:
                os.close(int(lifeline))
                if box:
                    os.chdir(folder)
                    rights = dict.fromkeys(["/proc/self", *readable.split(os.pathsep)], _READ)
                    _shut_in(
                        rights | dict.fromkeys(usable.split(os.pathsep), _USE) | {folder: _ALL},
                        box == NETWORK,
                    )
                os.execv(command[0], command)  # noqa: S606 - no shell
        except OSError as error:
            os.write(2, f"the box of the environment: {error}\n".encode())
        finally:
            os._exit(1)
    _set(_DUMPABLE, 0)
    for number in (1, 2, 15):  # SIGHUP, SIGINT, SIGTERM
        _library.signal(number, _IGNORE)
    for descriptor in descriptors.split(","):
        os.close(int(descriptor))
    waiting = select.poll()
    waiting.register(int(lifeline), 0)
    pause_ms = -1
    try:
        waiting.register(os.pidfd_open(child), select.POLLIN)
    except OSError:  # gVisor has none
        pause_ms = 20
    while not waiting.poll(pause_ms) and not os.waitid(
        os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG
    ):
        pass
    code = os.waitstatus_to_exitcode(_end_all(child))
    if folder:
        import shutil  # late: it is slow

        shutil.rmtree(folder, ignore_errors=True)
    if code < 0:
        _library.signal(-code, _DEFAULT)
        os.kill(launcher, -code)
    os._exit(max(code, 0))


def _end_all(child: int) -> int:
    """Kill all descendants; the status of `child`. A killed process's children become ours, and are
    killed next."""
    ended: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended[child]
        if process:
            ended[process] = status
            continue
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123 - pathlib is slow to import
                children = list(map(int, file.read().split()))
        except FileNotFoundError:  # a kernel without it
            children = [child]
        for each in children:
            try:
                group = os.getpgid(each)
                os.kill(each, _KILL)
                if group != os.getpgrp():
                    os.killpg(group, _KILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.001)


def _shut_in(rights: dict[str, int], network: bool) -> None:
    """Allow this process these rights beneath these paths, and no dangerous calls, for ever."""
    _set(_NO_NEW_PRIVILEGES, 1)
    if version := landlock_version():
        handled = (1 << _RIGHTS.get(version, 16)) - 1
        # From version 6 on: no signals to others, and none of their abstract sockets.
        attributes = (
            struct.pack("QQQ", handled, 0, 0b11) if version >= 6 else struct.pack("Q", handled)
        )
        ruleset = _require(
            _library.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0),
            "Landlock",
        )
        for path, wanted in rights.items():
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not on this machine
            allowed = wanted & handled & (_ALL if os.path.isdir(path) else _OF_FILES)  # noqa: PTH112 - as above
            _require(
                _library.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0),
                f"Landlock: {path}",
            )
            if path == "/proc/self":
                # else the kernel may forget it, and the rule with it
                os.set_inheritable(place, True)
            else:
                os.close(place)
        _require(_library.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
        os.close(ruleset)
    if has_seccomp():
        _refuse_calls(network)


def _refuse_calls(network: bool) -> None:
    """Set a filter of system calls: a program for the kernel's BPF machine, of (code, jump if true,
    else, value)."""
    column, architecture, seccomp = _MACHINES[os.uname().machine]
    equal, has_bit, allow = 0x15, 0x45, (0x06, 0, 0, 0x7FFF_0000)
    # loads of the call and its arguments
    number, first, second = ((0x20, 0, 0, place) for place in (0, 16, 24))

    def answer(error: int) -> tuple[int, int, int, int]:
        return (0x06, 0, 0, 0x0005_0000 | error)

    program = [(0x20, 0, 0, 4), (equal, 1, 0, architecture), answer(_EPERM), number]
    if column == 0:
        program += [(0x35, 0, 1, 0x4000_0000), answer(_ENOSYS)]  # the x32 numbers
    answers = {numbers[column]: _EPERM for numbers in _REFUSED.values()}
    answers |= {numbers[column]: _PRETEND for numbers in _MODES} | {
        _CLONE3: _ENOSYS,
        _OPENAT2: _ENOSYS,
    }
    # to the sockets of the machine's services, too
    answers |= {} if network else {_CONNECT[column]: _EACCES}
    for call, error in answers.items():
        program += [(equal, 0, 1, call), answer(error)]
    if network:
        some = [
            (equal, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)
        ]
        sockets = [first, *some, answer(_EACCES), allow]
    else:
        is_stream = [second, (0x54, 0, 0, 0xF), (equal, 1, 0, _STREAM)]
        sockets = [first, (equal, 0, 3, _UNIX), *is_stream, answer(_EACCES), allow]
    own_namespace = [first, (has_bit, 0, 1, _NAMESPACES), answer(_EPERM), allow]
    typing = [second, (equal, 0, 1, _TIOCSTI), answer(_EPERM), allow]
    for numbers, then in (
        (_SOCKET, sockets),
        (_SOCKETPAIR, sockets),
        (_CLONE, own_namespace),
        (_IOCTL, typing),
    ):
        program += [(equal, 0, len(then), numbers[column]), *then]
    code = b"".join(struct.pack("HBBI", *each) for each in (*program, allow))
    kept = ctypes.create_string_buffer(code, len(code))
    _require(
        _library.syscall(
            seccomp, 1, 0, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(kept))
        ),
        "seccomp",
    )


def _require(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
