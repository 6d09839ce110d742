"""Landlock (Linux 5.13): a process gives up rights for good, for itself and its children."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nsabench.machine.capabilities import LIBC, no_new_privileges, require_success

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
READ = EXECUTE | READ_FILE | READ_DIR
_FIRST = (1 << 13) - 1  # the rights that ABI 1 handles
_MAKE_DEVICES = 1 << 6 | 1 << 11  # root could read a disk through a new device file
_REFER, _TRUNCATE, _IOCTL_DEV = (1 << bit for bit in (13, 14, 15))
_ADDED = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}  # the right that each ABI version added
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
NETWORK_ABI, _TCP = 4, 0b11  # rights to bind and connect, from this ABI version
SCOPE_ABI, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """Return the ABI version of Landlock in this Linux; 0 without Landlock."""
    version = LIBC.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    return max(int(version), 0)


def handled(version: int) -> int:
    return _FIRST | sum(right for since, right in _ADDED.items() if version >= since)


def restrict(readable: Iterable[Path], listable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Restrict this thread and its children to these rights, and return the ABI version.

    readable, writable: files, and folders with all that is in them; device files cannot be made.
    listable: folders of which only file names can be read, also in folders below. From ABI 4, TCP
    is refused; from ABI 6, signals to outer processes and their abstract sockets. Raises `OSError`.
    """
    version = abi()
    everything = handled(version)
    attributes = _Ruleset(everything, _TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 24 if version >= SCOPE_ABI else 16 if version >= NETWORK_ABI else 8
    made = LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    ruleset = require_success(made, "landlock")
    try:
        own = everything & ~_MAKE_DEVICES
        for paths, rights in ((readable, READ), (listable, READ_DIR), (writable, own)):
            for path in paths:
                _allow(ruleset, path, rights)
        no_new_privileges()
        require_success(LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: Path, rights: int) -> None:
    with suppress(FileNotFoundError, PermissionError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_FILES
            if rights:
                rule = _PathBeneath(rights, descriptor)
                asked = ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0
                require_success(LIBC.syscall(_ADD_RULE, *asked), str(path))
        finally:
            os.close(descriptor)
