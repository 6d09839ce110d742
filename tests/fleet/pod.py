"""The pod of a fleet on Kubernetes, as one that `podman kube play` takes: it knows no Jobs.

What the cluster would fill in is filled in here, and nothing else is changed: the image, the index,
the node, the names of what Kustomize makes, and a folder of the pod in place of a bucket.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

BUCKET = "/scratch/bucket"
NODE = "node-1"
# Its own are above what a machine may allow.
LIMITS = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'


def documents(fleet: Path, image: str, inputs: Mapping[str, str]) -> list[dict[str, Any]]:
    """The ConfigMap and the first pod of a fleet. inputs: what its files hold by then."""
    job = yaml.safe_load((fleet / "base" / "job.yaml").read_text())
    template = job["spec"]["template"]
    [container] = template["spec"]["containers"]
    container |= {"image": image, "imagePullPolicy": "Never"}
    container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": "0"})
    [node] = [one for one in container["env"] if one["name"] == "NSABENCH_NODE"]
    del node["valueFrom"]
    node["value"] = NODE
    spec = yaml.safe_load((fleet / "fleet.yaml").read_text()) | {"results": BUCKET}
    [files] = [v["configMap"]["name"] for v in template["spec"]["volumes"] if "configMap" in v]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": files},
            "data": {"fleet.yaml": yaml.safe_dump(spec), **inputs},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "rows", **template["metadata"]},
            "spec": template["spec"],
        },
    ]


class Played:
    """A pod that podman plays. tool: the words that start podman, with its own folders."""

    name = "rows-nsabench"

    def __init__(self, tool: list[str], folder: Path, parts: list[dict[str, Any]]) -> None:
        self._tool = tool
        self._file = folder / "pod.yaml"
        self._file.write_text(yaml.safe_dump_all(parts))
        (folder / "containers.conf").write_text(LIMITS)
        self._environment = {"CONTAINERS_CONF": str(folder / "containers.conf")}
        secret = json.dumps({"AWS_REGION": "eA=="})  # base64, as Kubernetes keeps it
        self._podman("secret", "create", "nsabench-s3", "-", given=secret)
        [files] = [part["metadata"]["name"] for part in parts if part["kind"] == "ConfigMap"]
        self._podman("volume", "create", files)
        place = self._podman("volume", "inspect", "--format", "{{.Mountpoint}}", files).strip()
        Path(place, "input").mkdir()  # which podman 4.3 does not make by itself
        self._podman("kube", "play", "--network", "none", str(self._file))

    def _podman(self, *words: str, given: str = "", check: bool = True) -> str:
        done = subprocess.run(
            ["env", *(f"{k}={v}" for k, v in self._environment.items()), *self._tool, *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + (done.stderr if words[0] == "logs" else "")

    def ended(self) -> int:
        """The exit code of its container."""
        return int(self._podman("wait", self.name))

    def stop(self) -> None:
        """As Kubernetes ends a pod: a signal, and time to write down what was measured."""
        self._podman("stop", "--time", "180", self.name)

    def said(self) -> str:
        return self._podman("logs", self.name)

    def copy(self, place: str, to: Path) -> None:
        """Copy a folder of it."""
        self._podman("cp", f"{self.name}:{place}", str(to))

    def remove(self) -> None:
        self._podman("pod", "rm", "--all", "--force", check=False)
        self._podman("volume", "rm", "--all", "--force", check=False)
        self._podman("secret", "rm", "nsabench-s3", check=False)
