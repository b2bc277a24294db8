"""Landlock confinement: a process gives up files, network and other processes before it reads a stranger's data.

Landlock leaves it the files that it is told and no others, whatever it runs: Python's own and those that the tasks are
made of; never the home directory, where keys are. A filter of system calls (`seccomp.py`) leaves it no sockets, no new
processes and no signals to others. Neither needs rights, packages or namespaces. Where the kernel has no Landlock
nothing is confined, and no stranger's tasks are taken (`check_confinement`).
"""

import ctypes
import os
import resource
import site
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal.errors import TaskError
from shoal.tasks.isolation.seccomp import seccomp_filter

MAX_MEMORY = 2 << 30
# Of a process that environments of other packages run in, and of each that they start.
FOREIGN_MEMORY = 8 << 30
LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 0,
}
# What libraries look at when they are loaded. Nothing of a user's is in there.
SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    *("/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom", "/proc/cpuinfo", "/sys/devices/system/cpu"),
)
# linux/landlock.h: the same numbers on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION, PATH_BENEATH = 1, 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# Rights to files, connections (TCP) and scopes (abstract sockets, signals) that each version of Landlock can take away.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
NETWORK_SINCE, SCOPES_SINCE = 4, 6
# linux/prctl.h
SET_SECCOMP, FILTER, SET_NO_NEW_PRIVILEGES = 22, 2, 38


def landlock_version() -> int:
    """Which version of Landlock the kernel has; 0 for none."""
    if sys.platform != "linux":
        return 0
    asked = (ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION))
    return max(0, int(_libc().syscall(*asked)))


def check_confinement(whose: str, secrets: Iterable[Path]) -> None:
    """TaskError unless whatever makes a stranger's tasks here can be kept from the home directory and `secrets`."""
    trust = "or, if you trust its owner with all that you can read, say --allow-code"
    if not landlock_version():
        raise TaskError(
            f"{whose}: this kernel has no Landlock, so its tasks could read your files; use Linux 5.13 or later with "
            f"landlock among its security modules (see /sys/kernel/security/lsm), {trust}"
        )
    seccomp_filter()  # TaskError on a machine for which there is none
    for secret in (*secrets, Path(os.path.expanduser("~"))):  # noqa: PTH111  (Path.home raises where there is none)
        for shown in python_paths():
            if secret.resolve().is_relative_to(shown.resolve()):
                raise TaskError(
                    f"{whose}: Python's own path has {shown}, which holds {secret}, and its tasks could read it; take "
                    f"it out of PYTHONPATH, install shoal into a virtual environment, {trust}"
                )


def python_paths() -> list[Path]:
    """Where Python and its packages are."""
    named = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    base = Path(sys.base_prefix) / "lib"
    found = [base, *map(Path, [*sys.path, *named, *site.getsitepackages()]), Path(__file__).parents[2]]
    return [path for path in dict.fromkeys(found) if path.is_absolute() and path.exists()]


def confine(
    readable: Iterable[Path], start_threads: Callable[[], None] = lambda: None, memory: int = MAX_MEMORY
) -> None:
    """Gives up, for good, all but computing and reading Python's own files and `readable`.

    For one thread alone: the filters hold for the threads that it starts later, not for those that are there. It must
    start them in `start_threads`, because afterwards the limit of processes, which counts threads, is 0.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise TaskError("a process with several threads cannot be confined; this is a defect of shoal")
    _only_files([*python_paths(), *map(Path, SYSTEM), *readable])
    _only_computing()
    start_threads()
    limit(memory)


def limit(memory: int = MAX_MEMORY, processes: bool = False) -> None:
    """Gives up memory beyond so many bytes, files and, unless `processes`, new processes."""
    kept = (resource.RLIMIT_NPROC,) if processes else ()
    _lower({resource.RLIMIT_AS: memory} | {name: value for name, value in LIMITS.items() if name not in kept})


def limit_foreign(memory: int = FOREIGN_MEMORY) -> None:
    """Gives up memory alone: a harness has sockets, and starts programs that write files. It is trusted with that."""
    _lower({resource.RLIMIT_AS: memory, resource.RLIMIT_CORE: 0})


def _lower(limits: Mapping[int, int]) -> None:
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def _only_files(readable: Iterable[Path]) -> None:
    version = landlock_version()
    files = (1 << FILE_RIGHTS[min(version, max(FILE_RIGHTS))]) - 1
    rights = struct.pack("=QQQ", files, 0b11 if version >= NETWORK_SINCE else 0, 0b11 if version >= SCOPES_SINCE else 0)
    size = 24 if version >= SCOPES_SINCE else 16 if version >= NETWORK_SINCE else 8
    rules = _called(CREATE_RULESET, rights, ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            _add(rules, path)
        _prctl(SET_NO_NEW_PRIVILEGES, 1)
        _called(RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _add(rules: int, path: Path) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there is not read either
    try:
        rule = struct.pack("=Qi", READ_FILE | READ_DIR if path.is_dir() else READ_FILE, place)
        _called(ADD_RULE, ctypes.c_int(rules), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)


def _only_computing() -> None:
    program = ctypes.create_string_buffer(code := seccomp_filter(alone=False))
    # struct sock_fprog: how many instructions of eight bytes, and where they are.
    _prctl(SET_SECCOMP, FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(program)))


def _prctl(*arguments: int | bytes) -> None:
    words = [one if isinstance(one, bytes) else ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0)]
    if _libc().prctl(*words[:5]):
        raise OSError(ctypes.get_errno(), f"prctl {arguments[0]!r}: {os.strerror(ctypes.get_errno())}")


def _called(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
