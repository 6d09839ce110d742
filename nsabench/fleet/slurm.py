"""A fleet on Slurm: a job array with a task a shard, and a job after it that merges.

The batch script runs on the host, and nsabench in whatever holds its versions. Slurm requeues a
task whose node failed. A task whose time is nearly up is told so, ends with what it has journaled,
and asks to be queued again. In both cases the shard goes on in its own folder, which hosts share.

Where they share none, shards go through a bucket (`fleet.stored`). The script then brings along
what the fleet's folder holds, measures on a disk of the node, and nobody merges but who collects.
"""

from __future__ import annotations

import base64
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from secrets import token_hex

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import whole
from nsabench.fleet import stored
from nsabench.fleet.folder import INPUT, SPEC, FleetFolder
from nsabench.fleet.status import Stage
from nsabench.fleet.task import ELSEWHERE, is_begun, is_signed
from nsabench.model.plan import Plan
from nsabench.signing import run_keys
from nsabench.signing.secrecy import S3_ENV_FILE
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE

SHARD, MERGE = "shard.sh", "merge.sh"
WARNED_S = 180  # before the limit: Slurm may be a minute early, and a case may take a while to end
PATIENCE_S = 60
WORK = "/var/tmp"
MOST_BROUGHT = 2 << 20  # bytes, of a script: Slurm takes 4 MB
# Variables of its host that nsabench is told in a container. Slurm makes the first three.
TOLD = (
    *("SLURMD_NODENAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("XDG_STATE_HOME", KEY_FILE, PASSPHRASE_FILE, S3_ENV_FILE),
)


class Engine(StrEnum):
    """In what nsabench runs on a node."""

    VENV = "venv"
    APPTAINER = "apptainer"
    PYXIS = "pyxis"
    DOCKER = "docker"


@dataclass(frozen=True)
class Slurm:
    """How the jobs are to be. image: of the engine; of a venv its folder, empty for this one.
    time, memory, gres: as Slurm writes them; options: further ones of `sbatch`, for all jobs.
    key_file, passphrase_file: of the key that signs, at one path on all nodes. work: a folder of
    each node's own, where shards that go through a bucket are measured; s3_env: likewise a file
    with the AWS_* variables of the bucket, one `NAME=value` a line."""

    engine: Engine = Engine.VENV
    image: str = ""
    time: str = "12:00:00"
    gres: str = "gpu:1"
    cpus: int = 4
    memory: str = "32G"
    warned_s: int = WARNED_S
    options: Sequence[str] = ()
    key_file: str = ""
    passphrase_file: str = ""
    work: str = WORK
    s3_env: str = ""


def refuse(out: Path, how: Slurm) -> None:
    """Raises `UsageError` where an image is missing, a name is one that Slurm does not take, or a
    path on each node is a relative one. out: the folder that the fleet is to have."""
    if how.engine is not Engine.VENV and not how.image:
        raise UsageError(
            f"{how.engine} needs an image", "give --image; `nsabench images build` makes one."
        )
    for option, path in (("--work", how.work), ("--s3-env", how.s3_env)):
        if path and not Path(path).is_absolute():
            raise UsageError(
                f"{option} {path} is a relative path", "give the path that it has on every node."
            )
    for option, path in (("--out", str(out.absolute())), ("--work", how.work)):
        if shlex.quote(path) != path or "%" in path:
            raise UsageError(
                f"{path} has characters in its name that Slurm would take for others",
                f"give {option} a folder whose path is of letters, digits, '/', '.', '-' and '_'.",
            )


def write(folder: FleetFolder, how: Slurm) -> None:
    """Write shard.sh, and merge.sh where hosts share the folder, into a fleet's folder.

    Raises `UsageError` as `refuse` does, and where the fleet's files are too large to be brought
    along.
    """
    refuse(folder.path, how)
    spec = folder.read()
    count = spec.shards
    # Of this fleet alone. It is no secret, as Slurm shows where logs lie: the script looks whose it
    # is before it puts anything there.
    own = f"{how.work}/nsabench-{folder.path.name}-{token_hex(8)}-"
    logs = own if spec.results else f"{folder.logs}/shard-"
    name = f"nsabench-{folder.path.name}"
    both = [
        "--open-mode=append",
        "--export=NONE",  # Slurm would keep what it is handed, and a key may be there
        *how.options,
    ]
    shard = [
        f"--job-name={name}",
        f"--array=1-{count}",
        *([f"--gres={how.gres}"] if how.gres else []),
        f"--cpus-per-task={how.cpus}",
        f"--mem={how.memory}",
        f"--time={how.time}",
        f"--signal=B:USR1@{how.warned_s}",  # to the script, which hands it on
        "--requeue",
        f"--output={logs}%a.log",
    ]
    merge = [
        f"--job-name={name}-merge",
        "--requeue",
        f"--cpus-per-task={how.cpus}",
        f"--output={folder.logs}/merge.log",
    ]
    brought = _brought(folder, how, own) if spec.results else []
    _fill(folder, SHARD, [*shard, *both], how, gpu=bool(how.gres), count=count, brought=brought)
    if not spec.results:
        _fill(folder, MERGE, [*merge, *both], how, gpu=False, count=count)


def _fill(
    folder: FleetFolder,
    name: str,
    directives: Sequence[str],
    how: Slurm,
    *,
    gpu: bool,
    count: int,
    brought: Sequence[str] = (),
) -> None:
    """brought: lines of a script that make the fleet's folder on the node, if it is not shared."""
    text = (files("nsabench.fleet") / "templates" / name).read_text()
    for word, value in {
        "DIRECTIVES": "\n".join(f"#SBATCH {directive}" for directive in directives),
        "VARIABLES": "\n".join([*_variables(how), *brought]),
        "START": _start(folder, how, gpu=gpu, bucket=bool(brought)),
        "HERE": '"$fleet"' if brought else str(folder.path),
        # An engine that fails ends with 1, too: then nothing may be taken away.
        "DONE": "0" if brought else "0 | 1",
        "TIDY": 'rm -rf "$fleet" && ' if brought else "",
        "FLEET": str(folder.path),
        "COUNT": str(count),
        "ELSEWHERE": str(ELSEWHERE),
    }.items():
        text = text.replace(f"@{word}@", value)
    whole(folder.path / name, text.encode())


def _variables(how: Slurm) -> list[str]:
    state = os.environ.get("XDG_STATE_HOME")
    named = {
        KEY_FILE: how.key_file,
        PASSPHRASE_FILE: how.passphrase_file,
        "XDG_STATE_HOME": state or "",  # where the keys of unfinished runs are kept
    }
    # A job that is handed no environment may be without a home.
    lines = ['export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"']
    return lines + [f"export {name}={shlex.quote(to)}" for name, to in named.items() if to]


def _brought(folder: FleetFolder, how: Slurm, own: str) -> list[str]:
    """Lines that make the fleet's folder on a node, of what this one holds. own: how the path of
    each begins."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in (SPEC, INPUT, "shards"):
            archive.add(folder.path / name, name)
    size = len(packed.getvalue())
    if size > MOST_BROUGHT:
        raise UsageError(
            f"the files of the fleet take {size >> 20} MiB, too much for a script",
            "measure in a folder that all nodes share, without --results.",
        )
    text = base64.encodebytes(packed.getvalue()).decode()
    lines = [
        f'fleet="{own}$SLURM_ARRAY_TASK_ID"',
        '(umask 077 && mkdir -p "$fleet") || exit 3',
        # Another user of the node may have made it first, and would own what is run from it.
        'if [ ! -O "$fleet" ] || [ -L "$fleet" ] || ! chmod 700 "$fleet"; then',
        '    echo "$fleet is not a folder of this user: have it removed, and submit again." >&2',
        "    exit 3",
        "fi",
        f"base64 -d <<'END' | tar -xz --no-same-owner -C \"$fleet\" || exit 3\n{text}END",
    ]
    if how.s3_env:
        lines += [
            f"set -a; . {shlex.quote(how.s3_env)} || exit 3; set +a",
            f"export {S3_ENV_FILE}={shlex.quote(how.s3_env)}",
        ]
    return lines


def _start(folder: FleetFolder, how: Slurm, *, gpu: bool, bucket: bool) -> str:
    """The words that start nsabench on a node, for a shell. bucket: shards are sent there."""
    if how.engine is Engine.VENV:
        python = Path(how.image) / "bin" / "python" if how.image else Path(sys.executable)
        return f"{shlex.quote(str(python.absolute()))} -m nsabench"
    image = shlex.quote(how.image)
    # Words of a shell: where a shard goes through a bucket, its folder is named by the script.
    own = '"$fleet"' if bucket else shlex.quote(str(folder.path))
    known = f"--env-file {shlex.quote(how.s3_env)}" if bucket and how.s3_env else ""
    others = [run_keys.folder()]
    others += [Path(file).parent for file in (how.key_file, how.passphrase_file) if file]
    shown = list(dict.fromkeys([own, *(shlex.quote(str(path)) for path in others)]))
    if how.engine is Engine.APPTAINER:
        binds = " ".join(f"--bind {path}" for path in shown)
        # Contained as it is, it is handed no variable of its host that is not named.
        named = " ".join(f'${{{name}:+--env {name}="${name}"}}' for name in TOLD)
        start = f"apptainer exec --containall {'--nv ' if gpu else ''}{known} {named} {binds}"
        return f"{start} {image} nsabench"
    if how.engine is Engine.PYXIS:
        mounts = ",".join(f"{path}:{path}" for path in shown)
        return (
            f"srun --export=ALL --ntasks=1 --container-image={image} --container-writable=no "
            f"--no-container-mount-home --container-mounts={mounts} nsabench"
        )
    words = [
        f"docker run --rm --init --read-only --network {'host' if bucket else 'none'}",
        *([known] if known else []),
        "--cap-drop ALL",
        '--security-opt no-new-privileges --user "$(id -u):$(id -g)"',
        "--tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,size=4g --shm-size 1g",
        *(f"--env {name}" for name in TOLD),
        *(f"--volume {path}:{path}" for path in shown),
        *(['--gpus "device=${SLURM_JOB_GPUS:-$CUDA_VISIBLE_DEVICES}"'] if gpu else []),
        image,
    ]
    return " ".join(words)


def submit(folder: FleetFolder, options: Sequence[str] = (), *, anew: bool = False) -> list[str]:
    """Submit the shards that are not whole, and the merge after them. Returns the ids of the jobs,
    the merge's last; of a fleet whose shards go through a bucket there is none.

    A shard that was begun is submitted to the node on which it was begun. anew: it is begun again
    on any node, and what it had measured is kept beside it. options: further ones of `sbatch`.
    Raises `EnvironmentRefused` where Slurm does not take them.
    """
    spec = folder.read()
    if not (folder.path / SHARD).is_file():
        raise UsageError(
            f"{folder.path} is no fleet of Slurm", "make one with `nsabench fleet slurm`."
        )
    sent = stored.stages(spec.results) if spec.results else {}
    by_host: dict[str, list[int]] = defaultdict(list)
    for number in range(1, spec.shards + 1):
        run, state = folder.shard(number), folder.state(number)
        if is_signed(run) or sent.get(number) is Stage.WHOLE:
            continue
        begun = state is not None and is_begun(run)
        if begun and anew:
            aside = folder.path / "aside" / Plan.read(run / "plan.yaml").run_id
            aside.parent.mkdir(exist_ok=True)
            run.rename(aside)
        by_host[state.host if begun and state is not None and not anew else ""].append(number)
    jobs = []
    for host, numbers in by_host.items():
        where = [f"--nodelist={host}"] if host else []
        array = f"--array={','.join(map(str, numbers))}"
        jobs.append(_sbatch([array, *where, *options, str(folder.path / SHARD)]))
    if not spec.results:
        after = [f"--dependency=afterany:{':'.join(jobs)}"] if jobs else []
        jobs.append(_sbatch([*after, str(folder.path / MERGE)]))
    with folder.jobs.open("a") as file:
        file.writelines(f"{job}\n" for job in jobs)
    return jobs


def _sbatch(words: Sequence[str]) -> str:
    """Submit a script. Returns the id of the job."""
    if shutil.which("sbatch") is None:
        raise EnvironmentRefused(
            "there is no sbatch here", "submit on a host that Slurm's commands are installed on."
        )
    done = subprocess.run(
        ["sbatch", "--parsable", *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise EnvironmentRefused(
            f"Slurm does not take the job: {said}",
            "change the fleet's options, or give sbatch's own after --.",
        )
    return done.stdout.strip().partition(";")[0]


def queue(jobs: Sequence[str]) -> dict[str, str]:
    """What Slurm says of the tasks of these jobs that it has not ended, by `JOB_TASK`; empty where
    it cannot be asked."""
    if not jobs or shutil.which("squeue") is None:
        return {}
    words = ["squeue", "--noheader", "--array", "--format=%i %T %R", f"--jobs={','.join(jobs)}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    lines = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}
