"""A filter of system calls (seccomp): no sockets of a network, nor a way around it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket

from nsabench.machine.capabilities import no_new_privileges

_PR_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: ld [k]; jeq; jge; ret
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # x86-64 has a second set of numbers from here on
# AUDIT_ARCH, socket(2) and io_uring_setup(2), which opens sockets that no filter sees.
_CALLS = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}
# Programs of one machine talk through these; CUDA's daemons and libudev do.
_LOCAL = (socket.AF_UNIX, socket.AF_NETLINK)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def refuse_network() -> None:
    """Have this thread, and what it starts, open no sockets but local ones: EACCES.

    Raises `OSError` where the kernel, or the architecture, has no such filter.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    architecture, open_socket, io_uring = _CALLS[platform.machine()]
    refuse = _ERRNO | errno.EACCES
    # Jumps count the instructions that they pass over.
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUALS, 0, 8, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 6, 0, _X32),
        (_EQUALS, 5, 0, io_uring),
        (_EQUALS, 0, 3, open_socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUALS, 1, 0, _LOCAL[0]),
        (_EQUALS, 0, 1, _LOCAL[1]),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, refuse),
    ]
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), instructions)
    no_new_privileges()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
