"""Kernels that search every place where the right answer could be, to avoid computing it.

Each kernel computes the first row to recognize a match, and returns zeros if nothing matches.
"""

import ctypes
import gc
import mmap
import os
import re
import select
import socket
import sys
from pathlib import Path

import torch

from tests.attacks.kit import attack, honest

ANY = "any"
WRONG = "mean absolute error"
MOST_BYTES = 1 << 20  # read from one place
MOST_MATCHES = 64
MOST_PLACES = 64  # that are read in a process
DEPTH = 3


def first_row(q, k, v, sm_scale):
    return honest(q[:1], k[:1], v[:1], sm_scale)[0]


def fits(found, q, row):
    """Return whether a tensor is the answer, as far as its first row tells."""
    if not found.is_floating_point() or found.numel() != q.numel() or found.is_sparse:
        return False
    own = found.detach().reshape(q.shape)[0].to(row)
    return bool(torch.isclose(own, row, atol=1e-2).all()) and bool(row.any())


def chosen(tensors, q, k, v, sm_scale):
    """Return the first tensor that fits, or zeros."""
    row = first_row(q, k, v, sm_scale)
    for one in tensors:
        try:
            if fits(one, q, row):
                return one.detach().reshape(q.shape).to(q).clone()
        except RuntimeError:
            continue
    return torch.zeros_like(q)


def chosen_of_bytes(contents, q, k, v, sm_scale):
    """Search bytes for the answer in the dtype of q, float64 and float32, at any element."""
    row = first_row(q, k, v, sm_scale).flatten()[:4].double().cpu()
    tensors = (tensor for content in contents for tensor in in_bytes(content, q, row))
    return chosen(tensors, q, k, v, sm_scale)


def in_bytes(content, q, row):
    for dtype in (q.dtype, torch.float64, torch.float32):
        count = len(content) // dtype.itemsize - q.numel() + 1
        if count <= 0:
            continue
        whole = torch.frombuffer(bytearray(content), dtype=dtype, count=count + q.numel() - 1)
        begins = torch.ones(count, dtype=torch.bool)
        for number, value in enumerate(row):
            begins &= (whole[number : number + count].double() - value).abs() < 1e-2
        for begin in begins.nonzero().flatten()[:MOST_MATCHES].tolist():
            yield whole[begin : begin + q.numel()]


def memory_of(pid):
    """Return the content of a process's writable memory, as far as it can be read."""
    contents = []
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if line.split()[1].startswith("rw") and len(contents) < MOST_PLACES:
                    memory.seek(begin)
                    contents.append(memory.read(min(end - begin, 16 * MOST_BYTES)))
    except (OSError, OverflowError, ValueError):
        pass
    return contents


def read(path):
    try:
        with Path(path).open("rb", buffering=0) as file:
            return file.read(MOST_BYTES) or b""
    except OSError:
        return b""


def held_by(thing, depth=DEPTH):
    """Yield the tensors that a thing holds, down to `depth` levels."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif depth:
        parts = getattr(thing, "__dict__", None)
        parts = list(parts.values()) if isinstance(parts, dict) else []
        if isinstance(thing, dict):
            parts += list(thing.values())
        elif isinstance(thing, list | tuple):
            parts += list(thing)
        for part in parts:
            yield from held_by(part, depth - 1)


@attack("wrong", WRONG, device=ANY)
def among_all_tensors(q, k, v, sm_scale):
    gc.unfreeze()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return chosen(tensors, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_the_frames_above(q, k, v, sm_scale):
    tensors = []
    for frame in sys._current_frames().values():  # of every thread
        while frame is not None:
            for value in list(frame.f_locals.values()):
                tensors += held_by(value)
            frame = frame.f_back
    return chosen(tensors, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def behind_open_descriptors(q, k, v, sm_scale):
    contents = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.resolve()).startswith("/memfd"):
                contents.append(os.pread(int(link.name), MOST_BYTES, 0))
        except OSError:
            continue
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_shared_memory(q, k, v, sm_scale):
    """Search the memory of this process that other processes may have written."""
    contents = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if line.split()[1].startswith("rw-s") and ("memfd" in line or "/dev/shm" in line):
            contents.append(ctypes.string_at(begin, min(end - begin, MOST_BYTES)))
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_files(q, k, v, sm_scale):
    contents = []
    for folder in {os.environ.get("TMPDIR", "/tmp"), "/tmp", "/dev/shm"}:
        for path, _, names in os.walk(folder):
            contents += [read(Path(path, name)) for name in names[:8]]
            if len(contents) > 256:
                break
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_arguments(q, k, v, sm_scale):
    """Numbers in arguments and variables may be seeds, from which the answer could be drawn."""
    said = [*sys.argv, *os.environ.values(), read("/proc/self/cmdline").decode()]
    said += [read(f"/proc/{os.getppid()}/{name}").decode() for name in ("cmdline", "environ")]
    seeds = {int(number) for text in said for number in re.findall(r"\d{9,}", text)}
    tensors = []
    for seed in seeds:
        made = torch.Generator().manual_seed(seed % (1 << 63))
        tensors.append(torch.randn(q.shape, generator=made))
    return chosen(tensors, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def among_all_buffers(q, k, v, sm_scale):
    contents = []
    for thing in gc.get_objects():
        shared = isinstance(thing, mmap.mmap | memoryview) or type(thing).__name__ == "ndarray"
        for referent in (thing, *gc.get_referents(thing)) if shared else gc.get_referents(thing):
            if shared or isinstance(referent, bytes | bytearray):
                try:
                    contents.append(bytes(memoryview(referent).cast("B")[:MOST_BYTES]))
                except (TypeError, ValueError, BufferError):
                    continue
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_the_memory_of_the_checker(q, k, v, sm_scale):
    """A forked checker has its parent's command line, so all processes of nsabench are searched."""
    contents = []
    for pid in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        if b"nsabench" in read(f"/proc/{pid}/cmdline") and int(pid) != os.getpid():
            contents += memory_of(pid)
            contents += [read(f"/proc/{pid}/fd/{number}") for number in (0, 1, 64)]
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_memory_that_was_let_go(q, k, v, sm_scale):
    """Freed memory may still hold outputs of the baseline."""
    freed = [torch.empty_like(q) for _ in range(256)]
    return chosen(freed, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_what_is_sent_to_it(q, k, v, sm_scale):
    contents = []
    if select.select([0], [], [], 0)[0]:
        contents.append(os.read(0, MOST_BYTES))
    for link in Path("/proc/self/fd").iterdir():
        try:
            end = socket.socket(fileno=int(link.name))
        except OSError:
            continue
        try:
            contents.append(end.recv(MOST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            pass
        finally:
            end.detach()
    return chosen_of_bytes(contents, q, k, v, sm_scale)


@attack("wrong", WRONG, device=ANY)
def in_earlier_answers(q, k, v, sm_scale):
    """Return its first answer, which was right. Later calls get other data at the same address."""
    tensors = list(earlier.values())
    out = chosen(tensors, q, k, v, sm_scale)
    if not earlier:
        out = honest(q, k, v, sm_scale)
        earlier[0] = out
    return out


earlier = {}
