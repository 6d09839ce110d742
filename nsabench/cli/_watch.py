"""Call a check again whenever a file is saved. A save interrupts a running check."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

LOOK_S = 0.3
State = tuple[int, int, int]


def repeat(file: Path, check: Callable[[], object], on_saved: Callable[[], None]) -> NoReturn:
    """Call `check` now and after each save. on_saved: is called if a save interrupted a check."""
    before: State | None = None
    while True:
        now = _read_state(file)
        if now is None or now == before:  # None: an editor is replacing the file
            time.sleep(LOOK_S)
            continue
        before = now
        with _interrupting(file, now) as saved:
            try:
                check()
            except KeyboardInterrupt:
                if not saved.is_set():
                    raise
                on_saved()


def await_save() -> None:
    """Wait before an error is shown: if the file was half-saved, the check restarts meanwhile."""
    time.sleep(2 * LOOK_S)


@contextmanager
def _interrupting(file: Path, now: State) -> Iterator[threading.Event]:
    """If the file is saved during the block, set the event and interrupt the block."""
    saved, ended = threading.Event(), threading.Event()
    caller = threading.get_ident()

    def look() -> None:
        while not ended.wait(LOOK_S):
            if _read_state(file) not in (None, now):
                saved.set()
                if not ended.is_set():
                    signal.pthread_kill(caller, signal.SIGINT)
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield saved
    finally:
        ended.set()
        watcher.join()


def _read_state(file: Path) -> State | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
