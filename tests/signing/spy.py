"""A kernel that looks for secrets: in every other process's environment and memory, and in files.

The file that SPY names says which secrets to look for, in which places, and which processes to
skip. The kernel writes its results to the file beside it. Secrets are stored there in hexadecimal
digits, so that only this process has them in memory as plain bytes. If several processes call
this kernel, only the first looks: another one would find the secrets in the memory of the first.
"""

import json
import os
from pathlib import Path

from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa


def look(task):
    needles = {name: bytes.fromhex(text) for name, text in task["needles"].items()}
    left_out = {os.getpid(), *task["left_out"]}
    seen = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in left_out:
            seen[folder.name] = {
                "environ": within(needles, environ, folder),
                "memory": within(needles, memory, folder),
            }
    files = {path: within(needles, contents, Path(path)) for path in task["files"]}
    return {"parent": os.getppid(), "processes": seen, "files": files}


def within(needles, read, where):
    try:
        found = set()
        for part in read(where):
            found |= {name for name, needle in needles.items() if needle in part}
        return sorted(found)
    except OSError as error:
        return type(error).__name__


def contents(path):
    yield path.read_bytes()


def environ(folder):
    yield (folder / "environ").read_bytes()


def memory(folder):
    regions = (folder / "maps").read_text().splitlines()
    with (folder / "mem").open("rb", 0) as file:
        for region in regions:
            span, rights = region.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if not rights.startswith("rw") or end - begin > 1 << 30:
                continue
            try:
                file.seek(begin)
                yield file.read(end - begin)
            except (OSError, OverflowError):
                continue


_task = Path(os.environ["SPY"])
_found = _task.with_name("found.json")
_claim = _task.with_name("claim")


@implementation(op="selection_rows", name="mine", devices=("cpu", "cuda"))
def mine(q, k, v, *, sm_scale):
    try:
        _claim.touch(exist_ok=False)
    except FileExistsError:
        return gqa(q, k, v, sm_scale=sm_scale)
    part = _found.with_suffix(".part")
    part.write_text(json.dumps(look(json.loads(_task.read_text()))))
    part.replace(_found)
    return gqa(q, k, v, sm_scale=sm_scale)
