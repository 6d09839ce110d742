"""Job files for Kubernetes and Modal are valid, and bad requests are refused before a file is
written."""

import importlib
import importlib.util
import subprocess
from pathlib import Path

import pytest
import yaml

from nsabench.cli.all import command as all_
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.signing.signer import KEY_FILE, PASSPHRASE_FILE
from tests.commands import invoke
from tests.fleet.test_devices import TINY

KERNELS = """
from nsabench import implementation

@implementation(op="selection_rows", name="mine")
def mine(q, k, v, *, sm_scale):  # the name of a job is not filled in here: @NAME@
    return q
"""
KUBERNETES = ("--image", "registry.example/nsabench:cpu")
MODAL = ("--gpu", "H100!", "--combo", "torch2.11.0-cu130")


def write(folder, kind, *words):
    """Write the jobs for a user's matrix and kernels. Options in `words` override the others."""
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "mine.py").write_text(KERNELS)
    given = ["fleet", kind, folder / "tiny.yaml", "--kernels", folder / "mine.py", "--shards", 2]
    done = invoke(*given, "--where", "D=32 and L<=8", "--out", folder / "Rows_1", *words)
    if done.error is not None:
        raise done.error
    return folder / "Rows_1"


@pytest.mark.parametrize("version", ["1.31.0", "1.37.0"])
def test_kubernetes_accepts_the_manifests(tmp_path, version):
    kubernetes_validate = importlib.import_module("kubernetes_validate")  # a slow import
    pods = ["--toleration", "nvidia.com/gpu", "--runtime-class", "nvidia"]
    pods += ["--pull-secret", "registry", "--ttl-s", "3600"]
    out = write(tmp_path, "kubernetes", *KUBERNETES, *pods)
    documents = [
        document
        for name in ("shards.yaml", "merge.yaml")
        for document in yaml.safe_load_all((out / name).read_text())
    ]
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    files, shards, merge = documents
    assert files["data"] == {"tiny.yaml": TINY, "mine.py": KERNELS}
    assert shards["metadata"]["name"] == files["metadata"]["name"]
    for job in (shards, merge):
        assert job["spec"]["ttlSecondsAfterFinished"] == 3600
        pod = job["spec"]["template"]["spec"]
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        assert pod["runtimeClassName"] == "nvidia"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert shards["spec"]["completions"] == 2
    [container] = shards["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    [container] = merge["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["exec nsabench merge shards/1 shards/2 --out whole"]
    shards["spec"]["completionModes"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(shards, version, strict=True)


def test_a_shard_whose_claim_cannot_be_written_is_tried_again(tmp_path):
    out = write(tmp_path, "kubernetes", *KUBERNETES)
    [_, job] = yaml.safe_load_all((out / "shards.yaml").read_text())
    assert job["spec"]["backoffLimitPerIndex"] >= 6, "Kubernetes doubles its pause from 10 s"
    given_up = [
        rule["onExitCodes"]["values"]
        for rule in job["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    ]
    assert EnvironmentRefused.exit_code not in given_up[0] and UsageError.exit_code in given_up[0]
    merge = yaml.safe_load((out / "merge.yaml").read_text())
    assert merge["spec"]["backoffLimit"] > 0


def test_jobs_written_again_have_another_name_unless_it_is_given(tmp_path):
    names = []
    for folder, words in (("a", ()), ("b", ()), ("c", ("--name", "mine"))):
        (tmp_path / folder).mkdir()
        out = write(tmp_path / folder, "kubernetes", *KUBERNETES, *words)
        [files, _] = yaml.safe_load_all((out / "shards.yaml").read_text())
        names.append(files["metadata"]["name"])
    assert names[0] != names[1] and names[2] == "mine"
    assert all(name.startswith("nsabench-rows-1-") for name in names[:2])


def container(out):
    [_, job] = yaml.safe_load_all((out / "shards.yaml").read_text())
    [found] = job["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_a_pod_calls_nsabench_for_its_shard(tmp_path):
    """The pod's script is run here, with an `nsabench` that prints its arguments."""
    script = container(write(tmp_path, "kubernetes", *KUBERNETES, "--name", "mine"))["args"][0]
    (tmp_path / "nsabench").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "nsabench").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1"}
    called = subprocess.run(
        ["sh", "-c", script], env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert called[:2] == ["all", "/input/tiny.yaml"]
    context = all_.make_context("all", called[1:])
    given = context.params
    assert given["kernels"] == Path("/input/mine.py") and given["where"] == ("D=32 and L<=8",)
    assert (given["shard"], given["device"]) == ("2/2", "cuda")
    assert given["resume"] == Path("/results/mine/shards/2")


def test_both_jobs_can_sign(tmp_path):
    """The lines that begin with `# To sign: ` are uncommented, as the guide says."""
    out = write(tmp_path, "kubernetes", *KUBERNETES)
    for name in ("shards.yaml", "merge.yaml"):
        text = (out / name).read_text().replace("# To sign: ", "")
        *_, job = yaml.safe_load_all(text)
        pod = job["spec"]["template"]["spec"]
        [container] = pod["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        [mount] = [m for m in container["volumeMounts"] if m["name"] == "signing"]
        [volume] = [v for v in pod["volumes"] if v["name"] == "signing"]
        assert {str(Path(variables[n]).parent) for n in (KEY_FILE, PASSPHRASE_FILE)} == {
            mount["mountPath"]
        }
        assert volume["secret"]["defaultMode"] == 0o440


def test_a_pod_without_gpus_and_files(tmp_path):
    out = tmp_path / "quick"
    words = ("fleet", "kubernetes", "quick", "--device", "cpu", "--pod-gpus", 0, "--shards", 2)
    assert invoke(*words, "--out", out, *KUBERNETES).returncode == 0
    assert "nvidia.com/gpu" not in container(out)["resources"]["limits"]
    [files, _] = yaml.safe_load_all((out / "shards.yaml").read_text())
    assert files["data"] == {}


def test_the_app_for_modal_is_imported(tmp_path):
    path = write(tmp_path, "modal", *MODAL) / "app.py"
    spec = importlib.util.spec_from_file_location("app_of_a_fleet", path)
    assert spec is not None and spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    assert {0, 1, 5} == app.COMPLETE
    assert app.SHARDS == 2 and app.app.name == "nsabench-rows-1"
    assert app.FILES[str(tmp_path / "mine.py")] == "/input/mine.py"
    assert app.ARGUMENTS[:3] == ["/input/tiny.yaml", "--device", "cuda"]
    modal = importlib.import_module("modal")
    assert isinstance(app.measure, modal.Function) and isinstance(app.merge, modal.Function)


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("slurm", ["--shards", "3"], "3 shards are too many"),
        ("slurm", ["no_such_matrix"], "there is no matrix 'no_such_matrix'"),
        ("kubernetes", ["--ops", "other/mine.py"], "two of the files have the same name"),
        ("kubernetes", ["--name", "../Mine"], "cannot be the name of a Job"),
        ("modal", ["--combo", "torch0"], "has no combo 'torch0'"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, monkeypatch, kind, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.py").write_text("")
    monkeypatch.setattr("nsabench.ops.load_file", lambda path: None)
    own = {"slurm": (), "kubernetes": KUBERNETES, "modal": MODAL}[kind]
    with pytest.raises(UsageError, match=said):
        write(tmp_path, kind, *own, *words)
    assert not (tmp_path / "Rows_1").exists()


def test_a_single_shard_is_refused(tmp_path):
    """A single shard could not be merged."""
    words = (
        "fleet",
        "slurm",
        "quick",
        "--device",
        "cpu",
        "--shards",
        1,
        "--out",
        tmp_path / "jobs",
    )
    assert invoke(*words).returncode == UsageError.exit_code
    assert not (tmp_path / "jobs").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    write(tmp_path, "slurm")
    with pytest.raises(UsageError, match="is not empty"):
        write(tmp_path, "slurm")
