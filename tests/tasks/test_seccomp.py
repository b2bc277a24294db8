"""The filter of system calls, by the kernel's own numbers on every architecture it is made for.

tests/data/system_calls.tsv is taken from Linux 6.1: asm/unistd_64.h for x86_64, asm-generic/unistd.h for aarch64. It
holds the calls that computing takes and those by which a program could reach out.
"""

import csv
import struct
from pathlib import Path

import pytest

from shoal.tasks.isolation.seccomp import ALLOW, CLONE_THREAD, KILL, MACHINES, REFUSE, seccomp_filter

TABLE = Path(__file__).parents[1] / "data" / "system_calls.tsv"
# linux/elf-em.h and linux/audit.h: the ELF machine, 64 bits, little-endian.
AUDIT = {"x86_64": 62 | 0xC0000000, "aarch64": 183 | 0xC0000000}


def numbers(machine: str) -> dict[str, int]:
    with TABLE.open() as file:
        return {row["call"]: int(row[machine]) for row in csv.DictReader(file, delimiter="\t") if row[machine]}


def verdict(machine: str, call: int, argument: int = 0, audit: int | None = None) -> int:
    """What the kernel would make of a call: runs the filter."""
    data = struct.pack("=IIQQ", call, AUDIT[machine] if audit is None else audit, 0, argument)
    program = list(struct.iter_unpack("=HBBI", seccomp_filter(machine)))
    at, value = 0, 0
    while True:
        code, yes, no, operand = program[at]
        match code:
            case 0x06:
                return int(operand)
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
                jump = 0
            case 0x15:
                jump = yes if value == operand else no
            case 0x35:
                jump = yes if value >= operand else no
            case 0x45:
                jump = yes if value & operand else no
        at += 1 + jump


def allowed(machine: str) -> set[str]:
    return {name for name, call in numbers(machine).items() if verdict(machine, call) == ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_is_the_one_of_a_call_that_computing_takes(machine: str) -> None:
    names = {call: name for name, call in numbers(machine).items()}
    limits = MACHINES[machine].prlimit
    assert {names.get(call, call) for call in (*MACHINES[machine].calls, limits)} == allowed(machine)
    assert names[limits] == "prlimit64"
    assert verdict(machine, limits, 1234) == REFUSE
    assert {names[call] for call in MACHINES[machine].reaching} == {"execve", "kill", "tgkill"}
    assert names[MACHINES[machine].clone] == "clone"
    assert MACHINES[machine].audit == AUDIT[machine]


def test_every_architecture_allows_the_same_calls_but_for_those_that_it_does_not_have() -> None:
    assert allowed("aarch64") == allowed("x86_64") & set(numbers("aarch64"))
    # What these do a newer call does, which is allowed as well.
    old = "access alarm arch_prctl dup2 getdents getpgrp lstat open pause pipe poll readlink select stat time"
    assert allowed("x86_64") - allowed("aarch64") == set(old.split(" "))


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_that_reaches_out_is_allowed(machine: str) -> None:
    reaching = {"socket", "connect", "clone3", "ptrace", "mount", "unshare", "bpf", "memfd_create", "io_uring_setup"}
    reaching |= {"unlinkat", "renameat2", "process_vm_writev", "prctl", "seccomp", "openat2", "execveat", "setns"}
    table = numbers(machine)
    assert {name: verdict(machine, table[name]) for name in reaching} == dict.fromkeys(reaching, REFUSE)
    assert len(table) - len(allowed(machine)) > 90


@pytest.mark.parametrize("machine", MACHINES)
def test_a_thread_is_allowed_and_a_process_or_another_numbering_is_not(machine: str) -> None:
    clone = MACHINES[machine].clone
    assert verdict(machine, clone, CLONE_THREAD | 0x100) == ALLOW
    assert verdict(machine, clone, 0x11) == REFUSE
    assert verdict(machine, 0, audit=40) == KILL
    if machine == "x86_64":
        assert verdict(machine, 0x40000000) == KILL
