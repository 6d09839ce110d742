"""Run the attacks as a user without root's powers, or in a container without a network.

    python -m tests.attacks.elsewhere user [ARGUMENTS OF PYTEST]
    python -m tests.attacks.elsewhere container [ARGUMENTS OF PYTEST]

If root starts the first command, the tests run as uid 1000 without root's powers. The second needs
the image of the combo `cpu`, and starts it as `nsabench images run` does, with the tests mounted
read-only.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from nsabench.images import daemon, launch
from nsabench.images.combos import tag

CHECKOUT = Path(__file__).parents[2]
UID = 1000
OWNER = f"{UID}:{UID}"
COMBO = "cpu"
THERE = "/checkout"  # in the container
PACKAGES = "/packages"
TIME_LIMIT_S = 1800
FEW = "rewrites_the_bench or kept_by_address or leaves_an_orphan"


def pytest_in(temporary, arguments):
    return [
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("--basetemp", temporary, *(arguments or ["tests/attacks/test_attacks.py"])),
    ]


def as_user(arguments):
    """Run the tests as a user other than root, and return the exit code of pytest."""
    with tempfile.TemporaryDirectory(prefix="attacks-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, *pytest_in(f"{folder}/tests", arguments)]
        environment = {**os.environ, "HOME": folder, "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        if os.getuid() == 0:
            os.chown(folder, UID, UID)
            command = ["unshare", "--mount", "sh", "-euc", _demoted(command, folder)]
        done = subprocess.run(command, cwd=CHECKOUT, env=environment, timeout=TIME_LIMIT_S)
    return done.returncode


def _demoted(command, folder):
    """Return a shell script that root runs in its own mount namespace. The script makes visible
    what the tests need, at its usual path, even if a parent folder is closed to other users. Other
    files in such a folder stay hidden."""
    needed = [CHECKOUT, *({Path(sys.base_prefix).resolve(), Path(sys.prefix)} - {CHECKOUT})]
    closed = {one for path in needed for one in _closed(path)}
    lines = []
    shown = [path for path in needed if any(path.is_relative_to(one) for one in closed)]
    for number, path in enumerate(shown):
        aside = f"{folder}/{number}"
        lines += [f"mkdir {aside}", f"mount --bind {shlex.quote(str(path))} {aside}"]
    lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(one))}" for one in closed]
    for number, path in enumerate(shown):
        at = shlex.quote(str(path))
        lines += [f"mkdir -p {at}", f"mount --bind {folder}/{number} {at}"]
    lines.append(f"cd {shlex.quote(str(CHECKOUT))}")  # a mount may hide the old working folder
    powerless = ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--clear-groups"]
    become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", *powerless]
    return "\n".join([*lines, "exec " + shlex.join([*become, *command])])


def _closed(path):
    """Yield the outermost parent folder that other users may not enter, if there is one."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            yield folder
            return


def in_container(arguments, image=""):
    """Run the tests in an image: read-only, no network, uid 1000, no powers. Return the exit
    code."""
    client = daemon.connect()
    image = image or tag(COMBO)
    with (
        tempfile.TemporaryDirectory(prefix="attacks-", ignore_cleanup_errors=True) as folder,
        daemon.explained(image),
    ):
        results, packages = Path(folder, "results"), Path(folder, "packages")
        results.mkdir()
        Path(folder).chmod(0o755)
        _copy_pytest(packages)
        shown = {str(packages): PACKAGES}
        for part in ("tests", "pyproject.toml"):
            shown[str(CHECKOUT / part)] = f"{THERE}/{part}"
        digest = str(client.images.get(image).id)
        settings = launch._make_settings(launch.Launch(COMBO, [], results, user=OWNER), digest)
        assert settings["read_only"] and settings["network_mode"] == "none"
        assert settings["cap_drop"] == ["ALL"]
        settings["volumes"] |= {path: {"bind": at, "mode": "ro"} for path, at in shown.items()}
        settings["environment"] |= {"PYTHONPATH": f"{THERE}:{PACKAGES}", "OMP_NUM_THREADS": "1"}
        settings["environment"] |= {"HOME": "/tmp"}  # which exists and is writable
        settings |= {"entrypoint": ["python"], "working_dir": THERE}
        settings["command"] = pytest_in("/tmp/tests", arguments)
        container = client.containers.create(image, **settings)
        try:
            return launch._follow(container, lambda line: print(line, flush=True))
        finally:
            container.remove(force=True)


def _copy_pytest(to):
    """Copy pytest and its dependencies, which are not in the image. All of them are pure Python."""
    to.mkdir()
    names = ["pytest", "pytest-timeout"]
    for name in names:
        distribution = metadata.distribution(name)
        for line in distribution.requires or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                names += [wanted.name] if wanted.name not in names else []
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = to / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(distribution.locate_file(file)), target)


if __name__ == "__main__":
    where, *given = sys.argv[1:] or [""]
    places = {"user": as_user, "container": in_container}
    if where not in places:
        raise SystemExit(f"give one of {', '.join(places)}")
    raise SystemExit(places[where](given))
