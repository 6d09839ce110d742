"""Pack Tritons into archives that are small enough to be carried to a GPU host without a network.

    python -m tools.pack_tritons pack FOLDER 3.1.0,3.9.0 PYTHON
    python -m tools.pack_tritons unpack FOLDER ARCHIVES

PYTHON is the Python of that host, such as 3.12. An archive holds PyPI's wheel of one Triton,
without symbols, and without programs that only show machine code.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from nsabench.preflight import targets

SUFFIX = ".tar.xz"
NOT_NEEDED = ("cuobjdump", "nvdisasm")  # programs that show machine code; compiling needs ptxas
MOST_BYTES = 64 << 20


def pack(folder, versions, python):
    """Make and return an archive of each version. Raise `SystemExit` if one is too large."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_pack(folder, version, python) for version in targets.parse_tritons(versions)]


def _pack(folder, version, python):
    archive = folder / f"{version}{SUFFIX}"
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / version
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        of_that_host = ["--only-binary=:all:", "--python-version", python, "--target", str(tree)]
        subprocess.run([*pip, *of_that_host, f"triton=={version}"], check=True)
        for path in tree.rglob("*"):
            if path.name in NOT_NEEDED or path.name == "__pycache__":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.suffix == ".so" or path.name.startswith("ptxas"):
                subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(tree, version)
    size = archive.stat().st_size
    print(f"{archive}: {size / (1 << 20):.1f} MiB")
    if size > MOST_BYTES:
        raise SystemExit(f"{archive} is larger than {MOST_BYTES >> 20} MiB")
    return archive


def unpack(folder, archives):
    """Extract all `archives` into `folder`, except those that are there already. Return where."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for archive in sorted(archives.glob(f"*{SUFFIX}")):
        own = folder / archive.name.removesuffix(SUFFIX)
        if not own.is_dir():
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        made.append(own)
    return made


def main():
    match sys.argv[1:]:
        case ["pack", folder, versions, python]:
            pack(Path(folder), versions, python)
        case ["unpack", folder, archives]:
            unpack(Path(folder), Path(archives))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
