"""Run Slurm on this machine: munged, slurmctld, and one slurmd for each node."""

import os
import random
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PLACES = os.pathsep.join(("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin"))


def _program(name):
    found = shutil.which(name, path=PLACES)
    assert found is not None
    return found


@dataclass
class Cluster:
    """nodes: the names of nodes, each of which claims one CPU, one GPU and 4 GB."""

    folder: Path
    nodes: tuple[str, ...]
    _daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def variables(self):
        """The environment variables by which Slurm's commands find the cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self):
        for name in ("spool", "state", "log", "dev"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(random.randbytes(1024))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        self._write(self.folder / "munge.sock")
        munged = [_program("munged"), "--foreground", "--force", f"--key-file={key}"]
        munged += [f"--{name}-file={self.folder / name}" for name in ("seed", "pid", "log")]
        self._daemon("munged", [*munged, f"--socket={self.folder / 'munge.sock'}"])
        wait(lambda: (self.folder / "munge.sock").exists(), 20, "munged")
        self._daemon("slurmctld", [_program("slurmctld"), "-D"])
        for node in self.nodes:
            self._daemon(node, [_program("slurmd"), "-D", "-N", node])
        wait(lambda: self.ask("sinfo", "-h", "-o", "%t").split() == ["idle"], 60, "all nodes idle")

    def _write(self, munge):
        host = socket.gethostname().partition(".")[0]
        base = random.randrange(31_000, 32_000, 20)
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={base}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={munge}",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/log/slurmctld",
            f"SlurmdLogFile={self.folder}/log/slurmd-%n",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "GresTypes=gpu",
            "ReturnToService=2",
            "SlurmdTimeout=6",
            "KillWait=20",
            "MpiDefault=none",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
            "SlurmdParameters=config_overrides",
        ]
        devices = []
        for number, node in enumerate(self.nodes):
            device = self.folder / "dev" / f"nvidia{number}"
            os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={base + 1 + number} "
                "CPUs=1 RealMemory=4000 Gres=gpu:1"
            )
            devices.append(f"NodeName={node} Name=gpu File={device}")
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(devices) + "\n")

    def _daemon(self, name, words):
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.variables},
                start_new_session=True,
            )

    def ask(self, name, *words):
        """Return the output of one of Slurm's commands. Raises `CalledProcessError`."""
        return subprocess.run(
            [_program(name), *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def hasten(self):
        """Start requeued jobs at once, without Slurm's pause."""
        for line in self.ask("squeue", "-h", "-r", "-o", "%i %r").splitlines():
            job, _, reason = line.partition(" ")
            if reason == "BeginTime":
                subprocess.run(
                    [_program("scontrol"), "update", f"jobid={job}", "starttime=now"],
                    env={**os.environ, **self.variables},
                    capture_output=True,
                    timeout=60,
                )

    def stop(self):
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        for process in psutil.process_iter():  # processes that Slurm started
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                ours = process.environ().get("SLURM_CONF") == self.variables["SLURM_CONF"]
                if ours and process.pid != os.getpid():
                    process.kill()


def wait(until, most_s, what, look_s=0.2):
    """Wait until `until()` is true. Raises `TimeoutError`, which names `what`, after `most_s`
    seconds."""
    deadline = time.monotonic() + most_s
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {most_s:g} s")
        time.sleep(look_s)
