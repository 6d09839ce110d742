"""`nsabench packages`: what is here, and bringing what is no package, over a real server."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nsabench import packages
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.packages import Repository, repository
from nsabench.packages.repository import Repair
from tests.cli.conftest import Nsabench
from tests.cli.conftest import nsabench as nsabench

FILES = {
    "LICENSE": b"as it is\n",
    "some_kernels/__init__.py": b"from some_kernels.ops import attend\n",
    "some_kernels/ops.py": b"def attend():\n    return (1,)\n",
}
REPAIR = Repair("some_kernels/ops.py", "(1,)", "1", "a tuple of one, which nobody takes")


def of(**changed: object) -> Repository:
    given = {"github": "who/some-kernels", "commit": "c" * 40}
    return Repository(**{**given, "sha256": repository.digest(FILES), **changed})  # type: ignore


def archive(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"some-kernels-{'c' * 40}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return held.getvalue()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(repository.FOLDER, str(tmp_path / "packages"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, content in {**FILES, ".git/HEAD": b"ref", "a/__pycache__/x.pyc": b"x"}.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "checkout"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    served: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        monkeypatch.setattr(repository, "GITHUB", f"http://127.0.0.1:{listening.server_port}")
        yield served
        listening.shutdown()


def test_a_folder_given_by_hand_is_held_to_the_commit(checkout: Path) -> None:
    wanted = of(repairs=(REPAIR,))
    assert not repository.is_here(wanted)
    where = repository.fetch(wanted, checkout)
    assert repository.is_here(wanted) and not (where / ".git").exists()
    assert (where / REPAIR.file).read_bytes() == b"def attend():\n    return 1\n"
    with repository.importable(wanted):
        import some_kernels  # type: ignore[import-not-found]

        assert some_kernels.attend() == 1
    # Brought without a repair, it is not what is wanted.
    assert not repository.is_here(of())
    (checkout / "LICENSE").write_bytes(b"as it was not\n")
    with pytest.raises(UsageError, match="some-kernels cccccccccccc must have"):
        repository.fetch(wanted, checkout)
    assert repository.is_here(wanted), "what was brought before is still there"


def test_an_archive_comes_over_the_network(server: dict[str, bytes]) -> None:
    path = f"/who/some-kernels/tar.gz/{'c' * 40}"
    server[path] = archive(FILES)
    where = repository.fetch(of())
    assert {f.name for f in where.rglob("*") if f.is_file()} == {
        *("LICENSE", "__init__.py", "ops.py", ".nsabench")
    }
    server[path] = archive({**FILES, "../../escaped": b"x"})
    with pytest.raises(UsageError, match="outside the destination"):
        repository.fetch(of())
    server[path] = archive({**FILES, "more": b"y"})
    with pytest.raises(UsageError, match="sha256"):
        repository.fetch(of())
    server[path] = b"no archive"
    with pytest.raises(UsageError, match="cannot be read"):
        repository.fetch(of())
    del server[path]
    with pytest.raises(EnvironmentRefused, match="cannot be downloaded") as refused:
        repository.fetch(of())
    assert "--from FILE" in refused.value.remedy


def test_what_is_here_is_listed(nsabench: Nsabench, checkout: Path) -> None:
    rows = json.loads(nsabench("packages", "list", "--json").stdout)
    assert [row["package"] for row in rows] == [p.name for p in packages.CATALOGUE]
    assert all(row["licence"] and row["install"] for row in rows)
    text = nsabench("packages", "list").stdout
    assert "nsabench packages fetch Flash-Sparse-Attention" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such",), "no library is named 'no-such'"),
        (("fla-core",), "fla-core is not a repository"),
        (("--from", "."), "--from holds the files of one library"),
        (("Flash-Sparse-Attention", "--from", "."), "must have 8e883ade320a"),
    ],
)
def test_what_cannot_be_fetched_is_said(
    nsabench: Nsabench, arguments: tuple[str, ...], says: str
) -> None:
    done = nsabench("packages", "fetch", *arguments)
    assert done.returncode == 2 and says in done.stderr and "remedy:" in done.stderr
