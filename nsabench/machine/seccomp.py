"""A filter of system calls (seccomp): no sockets of a network nor a way around it, nothing that
outlives a process, and no hand on how other processes run."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
from dataclasses import dataclass

from nsabench.machine.capabilities import no_new_privileges

_PR_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: ld [k]; jeq; jge; ret
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # x86-64 has a second set of numbers from here on
# A process makes them for itself: CUDA does, and libudev.
_LOCAL = (socket.AF_UNIX, socket.AF_NETLINK)

Line = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Calls:
    """Numbers of system calls, as an architecture has them.

    connect: connect(2).
    lasting: io_uring_setup(2), which opens sockets that no filter sees; the calls of svipc(7) and
      mq_overview(7), whose memory, semaphores and queues stay when a process ends and lie in no
      folder; and those of keyrings(7), which a user has one of.
    of_a_process, of_several: set the limits, the priority, the scheduling or the memory of a
      process, which the first argument names, or the second where the first says of how many.
    affinity: sched_setaffinity(2).
    modes: chmod(2), chown(2) and the like.
    attributes: setxattr(2), removexattr(2) and the like.
    signals: kill(2), tkill(2), tgkill(2), rt_sigqueueinfo(2) and rt_tgsigqueueinfo(2), which name a
      process first; by_descriptor: pidfd_send_signal(2), which names none.
    fcntl, ioctl: have the kernel send SIGIO to whomever they name.
    """

    audit: int  # AUDIT_ARCH
    socket: int
    connect: int
    lasting: tuple[int, ...]
    of_a_process: tuple[int, ...]
    of_several: tuple[int, ...]
    affinity: int
    modes: tuple[int, ...]
    attributes: tuple[int, ...]
    signals: tuple[int, ...]
    fcntl: int
    ioctl: int
    by_descriptor: int = 424


_CALLS = {
    "x86_64": _Calls(
        0xC000003E,
        socket=41,
        connect=42,
        lasting=(425, *range(29, 32), *range(64, 72), 220, 240, 241, *range(248, 251)),
        of_a_process=(142, 144, 256, 279, 302, 314),
        of_several=(141, 251),
        affinity=203,
        modes=(*range(90, 95), 260, 268, 452),
        attributes=(*range(188, 191), *range(197, 200), 463, 466),
        signals=(62, 200, 234, 129, 297),
        fcntl=72,
        ioctl=16,
    ),
    "aarch64": _Calls(
        0xC00000B7,
        socket=198,
        connect=203,
        lasting=(425, 180, 181, *range(186, 198), *range(217, 220)),
        of_a_process=(118, 119, 238, 239, 261, 274),
        of_several=(140, 30),
        affinity=122,
        modes=(52, 53, 54, 55, 452),
        attributes=(5, 6, 7, 14, 15, 16, 463, 466),
        signals=(129, 130, 131, 138, 240),
        fcntl=25,
        ioctl=29,
    ),
}
# "All of this user", in setpriority(2) and ioprio_set(2).
_OF_A_USER = {141: 2, 251: 3, 140: 2, 30: 3}
# F_SETLEASE, in fcntl(2): whoever opens what is leased waits until its holder lets go.
_LEASE = (1024,)
# SOCK_DGRAM, and SOCK_RAW, which is the same among local sockets, with whatever flags.
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


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def restrict(*, signals: bool = False, connects: bool = False) -> None:
    """Have this thread, and what it starts, open no sockets but local ones, connect none to another
    process, leave nothing in the kernel that outlives it (EACCES), lease no file, and set nothing
    of other processes, nor attributes of files (EPERM).

    Programs of one machine do for whoever connects to them what he could not do himself: a daemon
    of containers starts one that sees every file, as root.

    Two more calls change nothing and succeed all the same. Which cores another thread runs on:
    OpenMP ends a process whose threads it cannot bind, and it names them by their number, which no
    filter tells from another process's. And modes and owners of files: Landlock leaves them open to
    whose files they are, and what copies a file, or links one, sets its mode.

    connects: let it connect local sockets. signals: keep signals to its own process and group
    (EPERM), too, as Landlock does from ABI 6 on. Its children are not among them, since no filter
    knows their numbers.

    Raises `OSError` where the kernel, or the architecture, has no such filter.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    calls = _CALLS[platform.machine()]
    held = (*_LEASE, *_OWNERS) if signals else _LEASE
    more = _where(calls.fcntl, _but(1, held, _ERRNO | errno.EPERM))
    more += _own_signals(calls) if signals else []
    if not connects:
        more += _where(calls.connect, [(_RETURN, 0, 0, _ERRNO | errno.EACCES)])
    lines = _lines(calls, more, datagrams=connects)
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), instructions)
    no_new_privileges()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _own_signals(calls: _Calls) -> list[Line]:
    """Who may be named by a signal: this process, 0 for its group, and the group by its number."""
    pid, denied = os.getpid(), _ERRNO | errno.EPERM
    # A group of others is no process's own, so that its number is left out.
    own = (0, pid, -pid & 0xFFFFFFFF) if os.getpgid(0) == pid else (pid,)
    lines: list[Line] = []
    for number in calls.signals:
        lines += _where(number, _only(0, own, denied))
    lines += _where(calls.by_descriptor, [(_RETURN, 0, 0, denied)])
    return lines + _where(calls.ioctl, _but(1, _OWNERS_BY_IOCTL, denied))


def _lines(calls: _Calls, more: list[Line], *, datagrams: bool) -> list[Line]:
    denied = _ERRNO | errno.EACCES
    lines: list[Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # Jumps count the instructions that they pass over.
        (_EQUALS, 1, 0, calls.audit),
        (_RETURN, 0, 0, denied),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, denied),
    ]
    for number in calls.lasting:
        lines += _where(number, [(_RETURN, 0, 0, denied)])
    # One of datagrams needs no connection to reach others; a pair of them is another call.
    local = _only(0, _LOCAL, denied) if datagrams else _connected(denied)
    lines += _where(calls.socket, local)
    itself, foreign = (0, os.getpid()), _ERRNO | errno.EPERM
    for number in calls.of_a_process:
        lines += _where(number, _only(0, itself, foreign))
    for number in calls.of_several:
        of_a_user: list[Line] = [
            _argument(0),
            (_EQUALS, 0, 1, _OF_A_USER[number]),
            (_RETURN, 0, 0, foreign),
        ]
        lines += _where(number, [*of_a_user, *_only(1, itself, foreign)])
    lines += _where(calls.affinity, _only(0, itself, _ERRNO))
    for number in calls.modes:
        lines += _where(number, [(_RETURN, 0, 0, _ERRNO)])
    for number in calls.attributes:
        lines += _where(number, [(_RETURN, 0, 0, foreign)])
    return [*lines, *more, (_RETURN, 0, 0, _ALLOW)]


def _where(number: int, block: list[Line]) -> list[Line]:
    """A block that ends the filter, for one system call."""
    return [(_EQUALS, 0, len(block), number), *block]


def _only(argument: int, values: tuple[int, ...], otherwise: int) -> list[Line]:
    """Allow a call whose argument is one of these."""
    jumps = [(_EQUALS, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(argument), *jumps, (_RETURN, 0, 0, otherwise), (_RETURN, 0, 0, _ALLOW)]


def _but(argument: int, values: tuple[int, ...], otherwise: int) -> list[Line]:
    """Allow a call whose argument is none of these."""
    jumps = [(_EQUALS, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(argument), *jumps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, otherwise)]


def _connected(otherwise: int) -> list[Line]:
    """Allow sockets of the kernel's own, and local ones that reach nobody before connect(2)."""
    local, kernel = _LOCAL
    return [
        _argument(0),
        (_EQUALS, 0, 1, kernel),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUALS, 1, 0, local),
        (_RETURN, 0, 0, otherwise),
        *_but(1, _DATAGRAMS, otherwise),
    ]


def _argument(place: int) -> Line:
    """Load the lower half of an argument, which is all that the kernel takes of an int."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * place)
