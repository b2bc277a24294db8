"""seccomp filter: the allow-list of system calls, loaded by bubblewrap or by a process for itself.

What is not listed does not exist for it: no sockets, no new processes (threads do not count), no mounts, no tracing,
nothing that keeps data outside its own bounded memory, no randomness (`sandbox.py` has a device in its place).
"""

import platform
import struct
from dataclasses import dataclass
from errno import ENOSYS

from shoal.errors import TaskError

CLONE_THREAD = 0x10000
# linux/bpf_common.h, linux/seccomp.h
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | ENOSYS
# struct seccomp_data: number, architecture, instruction pointer, arguments
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture: its audit number, where a second numbering begins, `clone`, `prlimit64`, the calls that are
    allowed, and those of them that reach other processes: `execve`, `kill` and `tgkill`."""

    audit: int
    foreign: int
    clone: int
    prlimit: int
    calls: tuple[int, ...]
    reaching: tuple[int, ...]


# fmt: off
MACHINES = {
    "x86_64": Machine(0xC000003E, 0x40000000, 56, 302, (
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 28,  # read .. madvise
        32, 33, 34, 35, 36, 37, 38, 39,  # dup, dup2, pause, nanosleep, timers, getpid
        59, 60, 61, 62, 63, 72, 78, 79, 80, 89, 95, 96, 97, 98, 99, 100,  # execve, exit, wait4, kill .. times
        102, 104, 107, 108, 110, 111, 115, 121, 131,  # who am I; sigaltstack
        158, 160, 186, 201, 202, 204, 217, 218, 221, 228, 229, 230, 231, 234,  # arch_prctl .. tgkill
        257, 262, 267, 269, 270, 271, 273, 290, 292, 293, 332, 334, 439,  # openat .. faccessat2
    ), (59, 62, 234)),
    "aarch64": Machine(0xC00000B7, 0xFFFFFFFF, 220, 261, (
        17, 19, 23, 24, 25, 29, 48, 49, 56, 57, 59, 61, 62, 63, 64, 65, 66, 67, 72, 73, 78, 79, 80,  # getcwd .. fstat
        93, 94, 96, 98, 99, 101, 102, 103, 113, 114, 115, 123, 124, 129, 131, 132, 134, 135, 139,  # exit .. sigreturn
        153, 155, 158, 160, 163, 164, 165, 166, 169, 172, 173, 174, 175, 176, 177, 178, 179,  # times .. sysinfo
        214, 215, 216, 221, 222, 223, 226, 233, 260, 291, 293, 439,  # brk .. faccessat2
    ), (221, 129, 131)),
}
# fmt: on


def seccomp_filter(machine: str | None = None, alone: bool = True) -> bytes:
    """The filter for this machine's architecture; TaskError where it is not known. A process that is not alone in a
    namespace of its own may neither become another program nor signal others."""
    name = machine or platform.machine()
    if name not in MACHINES:
        known = ", ".join(MACHINES)
        raise TaskError(f"no filter of system calls for {name}, known: {known}; use another machine")
    found = MACHINES[name]
    program = [
        _op(LOAD, MACHINE_AT),
        _op(EQUAL, found.audit, yes=1),
        _op(RETURN, KILL),
        _op(LOAD, NUMBER_AT),
        _op(AT_LEAST, found.foreign, no=1),
        _op(RETURN, KILL),
        _op(EQUAL, found.clone, no=4),
        _op(LOAD, FIRST_ARGUMENT_AT),
        _op(ANY_BIT, CLONE_THREAD, no=1),
        _op(RETURN, ALLOW),
        _op(RETURN, REFUSE),
        _op(EQUAL, found.prlimit, no=4),
        _op(LOAD, FIRST_ARGUMENT_AT),
        _op(EQUAL, 0, no=1),  # its own limits; a process that is named may be another
        _op(RETURN, ALLOW),
        _op(RETURN, REFUSE),
    ]
    calls = [call for call in found.calls if alone or call not in found.reaching]
    # Each jumps over those that follow, and over the refusal.
    program += [_op(EQUAL, call, yes=len(calls) - place) for place, call in enumerate(calls)]
    return b"".join([*program, _op(RETURN, REFUSE), _op(RETURN, ALLOW)])


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction (struct sock_filter) with how many to jump over if its test holds, and if not."""
    return struct.pack("=HBBI", code, yes, no, value)
