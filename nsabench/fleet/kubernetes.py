"""A fleet on Kubernetes: an Indexed Job with a pod a shard, as a base and an overlay for Kustomize.

A pod has a scratch that ends with it, so what it measured goes into a bucket, whole or stopped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nsabench.errors import UsageError
from nsabench.files import whole
from nsabench.fleet.folder import INPUT, SPEC, FleetFolder
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE

# Exit codes of nsabench: its input or the machine will be the same when it is tried again.
FINAL = (2, 3, 4)
AGAIN = (130, 143)  # interrupted, or ended by its host
KEY, PASSPHRASE = "signing.key", "passphrase"
MOST_INPUT = 900_000  # bytes that a ConfigMap takes, less its names
UID = 1000  # of the image's user
WORK, SCRATCH = "/scratch/fleet", "/scratch"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


@dataclass(frozen=True)
class Kubernetes:
    """How the job is to be. image: with its tag or digest; key_secret: a Secret with `signing.key`
    and its `passphrase`; s3_secret: one with the AWS_* variables of the bucket;
    queue: a LocalQueue of Kueue; product: what a node's label nvidia.com/gpu.product must be;
    parallel: pods at once, 0 for all."""

    name: str
    image: str
    gpus: int = 1
    cpus: int = 8
    memory: str = "32Gi"
    scratch: str = "20Gi"
    key_secret: str = ""
    s3_secret: str = "nsabench-s3"
    queue: str = ""
    product: str = ""
    namespace: str = "nsabench"
    parallel: int = 0
    retries: int = 6


def name_of(word: str) -> str:
    """A name that Kubernetes takes, of the word that a person has chosen."""
    return f"nsabench-{re.sub('[^a-z0-9]+', '-', word.lower()).strip('-')}"[:52].strip("-")


def write(folder: FleetFolder, how: Kubernetes) -> None:
    """Write `base` and `overlay` into a fleet's folder. Raises `UsageError` for a name that
    Kubernetes does not take, and for files that are too large for a ConfigMap."""
    for name in filter(None, (how.name, how.namespace, how.key_secret, how.s3_secret, how.queue)):
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for Kubernetes",
                "use up to 52 small letters, digits and '-', such as rows-h200.",
            )
    inputs = sorted((folder.path / INPUT).iterdir())
    if sum(path.stat().st_size for path in (folder.spec, *inputs)) > MOST_INPUT:
        raise UsageError(
            f"the files of the fleet have more than {MOST_INPUT} bytes, which a ConfigMap holds",
            "put them into the image, and name them by their place in it.",
        )
    count = folder.read().shards
    base = folder.path / "base"
    base.mkdir()
    _write(base / "job.yaml", job(how, count, [path.name for path in inputs]))
    # Kustomize reads no files from outside of its folder.
    for path in (folder.spec, *inputs):
        (base / path.name).write_bytes(path.read_bytes())
    _write(base / "kustomization.yaml", _base(how, [path.name for path in inputs]))
    overlay = folder.path / "overlay"
    overlay.mkdir()
    _write(overlay / "kustomization.yaml", _overlay(how))


def _write(path: Path, document: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(dict(document), sort_keys=False, width=100)
    whole(path, f"# Made by `nsabench fleet kubernetes`.\n{text}".encode())


def _base(how: Kubernetes, inputs: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["job.yaml"],
        "configMapGenerator": [{"name": f"{how.name}-fleet", "files": [SPEC, *inputs]}],
    }


def _overlay(how: Kubernetes) -> dict[str, Any]:
    """What a cluster decides: namespace, image, queue and nodes."""
    image, _, tag = how.image.rpartition(":")
    renamed = (
        {"name": "nsabench", "newName": image, "newTag": tag}
        if image and "@" not in how.image and "/" not in tag
        else {"name": "nsabench", "newName": how.image}
    )
    if "@" in how.image:
        image, _, digest = how.image.partition("@")
        renamed = {"name": "nsabench", "newName": image, "digest": digest}
    patches: list[dict[str, Any]] = []
    if how.queue:
        patches += [
            {
                "op": "add",
                "path": "/metadata/labels/kueue.x-k8s.io~1queue-name",
                "value": how.queue,
            },
            {"op": "add", "path": "/spec/suspend", "value": True},  # until Kueue admits it
        ]
    if how.product:
        selector = {"nvidia.com/gpu.product": how.product}
        path = "/spec/template/spec/nodeSelector"
        patches.append({"op": "add", "path": path, "value": selector})
    document: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": how.namespace,
        "resources": ["../base"],
        "images": [renamed],
    }
    if patches:
        text = yaml.safe_dump(patches, sort_keys=False)
        document["patches"] = [{"target": {"kind": "Job", "name": how.name}, "patch": text}]
    return document


def job(how: Kubernetes, count: int, inputs: list[str]) -> dict[str, Any]:
    """The Indexed Job. inputs: the names of the user's files."""
    labels = {"app.kubernetes.io/name": "nsabench", "app.kubernetes.io/instance": how.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": how.name, "labels": dict(labels)},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": how.parallel or count,
            "backoffLimitPerIndex": how.retries,
            "maxFailedIndexes": count,  # one bad host does not end the others
            "podFailurePolicy": {"rules": _rules()},
            "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(how, inputs)},
        },
    }


def _rules() -> list[dict[str, Any]]:
    def codes(values: tuple[int, ...]) -> dict[str, Any]:
        return {"containerName": "nsabench", "operator": "In", "values": list(values)}

    return [
        # A pod that its node gave up is no failure of the shard.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailIndex", "onExitCodes": codes(FINAL)},
        {"action": "Count", "onExitCodes": codes(AGAIN)},
    ]


def _pod(how: Kubernetes, inputs: list[str]) -> dict[str, Any]:
    environment: list[dict[str, Any]] = [
        {"name": "XDG_STATE_HOME", "value": f"{SCRATCH}/state"},
        {"name": "NSABENCH_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "NSABENCH_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    items = [{"key": SPEC, "path": SPEC}]
    items += [{"key": name, "path": f"{INPUT}/{name}"} for name in inputs]
    volumes: list[dict[str, Any]] = [
        {"name": "fleet", "configMap": {"name": f"{how.name}-fleet", "items": items}},
        {"name": "scratch", "emptyDir": {"sizeLimit": how.scratch}},
        {"name": "tmp", "emptyDir": {"sizeLimit": how.scratch}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "fleet", "mountPath": "/fleet", "readOnly": True},
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if how.key_secret:
        volumes.append(
            {
                "name": "key",
                "secret": {
                    "secretName": how.key_secret,
                    "defaultMode": 0o440,
                },
            }
        )
        mounts.append({"name": "key", "mountPath": "/key", "readOnly": True})
        environment += [
            {"name": KEY_FILE, "value": f"/key/{KEY}"},
            {"name": PASSPHRASE_FILE, "value": f"/key/{PASSPHRASE}"},
        ]
    resources: dict[str, Any] = {"cpu": str(how.cpus), "memory": how.memory}
    if how.gpus:
        resources["nvidia.com/gpu"] = how.gpus
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # What is stopped is written down and sent away.
        "terminationGracePeriodSeconds": 180,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "nsabench",
                "image": "nsabench",  # an overlay says which
                "args": ["fleet", "measure", "/fleet", "--work", WORK],
                "env": environment,
                "envFrom": [{"secretRef": {"name": how.s3_secret}}],
                # Limits that are the requests: CPUs of its own, and none that are taken away.
                "resources": {"requests": dict(resources), "limits": dict(resources)},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
