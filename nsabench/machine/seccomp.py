"""Filter system calls (seccomp) on sockets, objects that outlive a process, other processes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
from dataclasses import dataclass

from nsabench.machine.capabilities import LIBC, no_new_privileges, require_success

_PR_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: ld [k]; jeq; jge; ret
# Results of a filter: allow, succeed without effect, or fail with an error.
_ERRNO = 0x00050000
_ALLOW, _IGNORE = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, _ERRNO)
_DENY, _DENY_ACCESS = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ERRNO | errno.EACCES)
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # x86-64 numbers the system calls of its ABI x32 from here
# CUDA and libudev need these.
_LOCAL = (socket.AF_UNIX, socket.AF_NETLINK)

Line = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Calls:
    audit: int  # AUDIT_ARCH
    socket: tuple[int, ...]
    connect: tuple[int, ...]
    # io_uring_setup(2), whose sockets no filter sees, and the calls of svipc(7), mq_overview(7) and
    # keyrings(7), whose objects outlive a process.
    lasting: tuple[int, ...]
    # Calls that set limits, priority, scheduling or memory of a process, their first argument. In
    # the calls of `of_several`, it says whether the second argument is a process, group or user.
    of_a_process: tuple[int, ...]
    of_several: tuple[int, ...]
    affinity: tuple[int, ...]  # sched_setaffinity(2)
    modes: tuple[int, ...]  # chmod(2), chown(2)
    attributes: tuple[int, ...]  # setxattr(2)
    # kill(2), tkill(2), tgkill(2), rt_sigqueueinfo(2), rt_tgsigqueueinfo(2).
    signals: tuple[int, ...]
    fcntl: tuple[int, ...]  # can send SIGIO to another process, as ioctl can
    ioctl: tuple[int, ...]
    by_descriptor: tuple[int, ...] = (424,)  # pidfd_send_signal(2), which names no process


_CALLS = {
    "x86_64": _Calls(
        0xC000003E,
        socket=(41,),
        connect=(42,),
        lasting=(425, *range(29, 32), *range(64, 72), 220, 240, 241, *range(248, 251)),
        of_a_process=(142, 144, 256, 279, 302, 314),
        of_several=(141, 251),
        affinity=(203,),
        modes=(*range(90, 95), 260, 268, 452),
        attributes=(*range(188, 191), *range(197, 200), 463, 466),
        signals=(62, 200, 234, 129, 297),
        fcntl=(72,),
        ioctl=(16,),
    ),
    "aarch64": _Calls(
        0xC00000B7,
        socket=(198,),
        connect=(203,),
        lasting=(425, 180, 181, *range(186, 198), *range(217, 220)),
        of_a_process=(118, 119, 238, 239, 261, 274),
        of_several=(140, 30),
        affinity=(122,),
        modes=(52, 53, 54, 55, 452),
        attributes=(5, 6, 7, 14, 15, 16, 463, 466),
        signals=(129, 130, 131, 138, 240),
        fcntl=(25,),
        ioctl=(29,),
    ),
}
# For setpriority(2) and ioprio_set(2), the first argument that means all processes of a user.
_OF_A_USER = {141: 2, 251: 3, 140: 2, 30: 3}
# F_SETLEASE in fcntl(2) makes others wait when they open the file.
_LEASE = (1024,)
# SOCK_DGRAM and SOCK_RAW (equal for local sockets), with all flags.
_DATAGRAMS = tuple(
    kind | closed | waiting
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW)
    for closed in (0, socket.SOCK_CLOEXEC)
    for waiting in (0, socket.SOCK_NONBLOCK)
)
_OWNERS = (8, 15)  # F_SETOWN and F_SETOWN_EX, in fcntl(2)
_OWNERS_BY_IOCTL = (0x8901, 0x8902)  # FIOSETOWN and SIOCSPGRP


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def restrict(*, signals: bool = False, connects: bool = False) -> None:
    """Restrict the system calls of this thread and its children.

    EACCES refuses sockets that are not local, connections to other processes, io_uring, and objects
    that outlive the process (System V, keys). EPERM refuses file leases and attributes, and
    settings of other processes. Changes of CPU affinity of other threads and of file modes succeed
    without effect, since OpenMP and programs that copy files fail otherwise.

    signals: also refuse signals (EPERM), except to this process and to a group that it leads.
    connects: allow connections of local sockets. Raises `OSError` if no filter is possible here.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    lines = _make_filter(_CALLS[platform.machine()], signals=signals, connects=connects)
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _FilterProgram(len(lines), instructions)
    no_new_privileges()
    result = LIBC.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)
    require_success(result, "seccomp")


def _make_filter(calls: _Calls, *, signals: bool, connects: bool) -> list[Line]:
    lines: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # The numbers of a jump say how many instructions it skips.
        (_EQUALS, 1, 0, calls.audit),
        _DENY_ACCESS,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        _DENY_ACCESS,
    ]
    lines += _match_calls(calls.lasting, [_DENY_ACCESS])
    # Without `connects`, datagram sockets are also refused: they reach others without connect(2).
    local = _match_values(0, _LOCAL, _ALLOW, _DENY_ACCESS) if connects else _match_connected()
    lines += _match_calls(calls.socket, local)
    itself = (0, os.getpid())
    lines += _match_calls(calls.of_a_process, _match_values(0, itself, _ALLOW, _DENY))
    for number in calls.of_several:
        of_a_user = [_load_argument(0), (_EQUALS, 0, 1, _OF_A_USER[number]), _DENY]
        lines += _match_calls((number,), [*of_a_user, *_match_values(1, itself, _ALLOW, _DENY)])
    lines += _match_calls(calls.affinity, _match_values(0, itself, _ALLOW, _IGNORE))
    lines += _match_calls(calls.modes, [_IGNORE])
    lines += _match_calls(calls.attributes, [_DENY])
    commands = (*_LEASE, *_OWNERS) if signals else _LEASE
    lines += _match_calls(calls.fcntl, _match_values(1, commands, _DENY, _ALLOW))
    if signals:  # allow those to this process, and to its group (0 or -pid) if it leads the group
        pid = os.getpid()
        own = (0, pid, -pid & 0xFFFFFFFF) if os.getpgid(0) == pid else (pid,)
        lines += _match_calls(calls.signals, _match_values(0, own, _ALLOW, _DENY))
        lines += _match_calls(calls.by_descriptor, [_DENY])
        lines += _match_calls(calls.ioctl, _match_values(1, _OWNERS_BY_IOCTL, _DENY, _ALLOW))
    if not connects:
        lines += _match_calls(calls.connect, [_DENY_ACCESS])
    return [*lines, _ALLOW]


def _match_calls(numbers: tuple[int, ...], block: list[Line]) -> list[Line]:
    """Return code that runs `block`, which ends the filter, for each of these calls."""
    return [line for n in numbers for line in [(_EQUALS, 0, len(block), n), *block]]


def _match_values(
    argument: int, values: tuple[int, ...], matched: Line, otherwise: Line
) -> list[Line]:
    """Return code that ends with `matched` if an argument is one of `values`, or `otherwise`."""
    jumps = [(_EQUALS, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_load_argument(argument), *jumps, otherwise, matched]


def _match_connected() -> list[Line]:
    """Return code that allows netlink, and local sockets that need connect(2)."""
    local, kernel = _LOCAL
    return [
        _load_argument(0),
        (_EQUALS, 0, 1, kernel),
        _ALLOW,
        (_EQUALS, 1, 0, local),
        _DENY_ACCESS,
        *_match_values(1, _DATAGRAMS, _DENY_ACCESS, _ALLOW),
    ]


def _load_argument(argument: int) -> Line:
    """Load the lower 32 bits of an argument; Linux reads no more of an int."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument)
