"""Preflight on the shipped kernels, and on kernels that fail in every way."""

import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from nsabench.cli import group
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.machine.environment.pairs import PAIRS
from nsabench.model.vocabulary import Status
from nsabench.preflight import run, targets
from nsabench.preflight.targets import ARCHITECTURES
from tests import forked

pytest.importorskip("triton")

HOSTILE = Path(__file__).parent / "mlir_abort.py"
OWN_COMPILER = Path(__file__).parent / "own_compiler.py"
CALLER = Path(__file__).parent / "calls_a_function.py"
FOR_EVER = Path(__file__).parent / "compiled_for_ever.py"
MATRIX = """
op: selection_rows
axes: {N: [4, 512], H: 4, D: 64, L: 77}
"""


def preflight(folder, matrix, architectures, *options):
    """Return the exit code, the rows of the table in `folder`, and the printed text."""
    file, out = folder / "matrix.yaml", folder / "preflight.parquet"
    file.write_text(matrix)
    command = [forked.shim(compiles=True), "preflight", file, "--arch", architectures]
    done = subprocess.run(
        [*command, *map(str, options), "--out", out],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert "Traceback" not in done.stderr, done.stderr
    rows = pq.read_table(out).to_pylist() if out.is_file() else []
    return done.returncode, rows, done.stdout + done.stderr


def test_the_shipped_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    code, rows, text = preflight(tmp_path, MATRIX, "sm_90")
    assert code == 0, text
    assert {r["architecture"] for r in rows} == {"sm_90"}
    assert {"rows_group", "rows_per_head"} <= {r["implementation"] for r in rows}
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < row["registers"] <= 255
        assert row["shared_bytes"] <= row["shared_limit_bytes"]
        assert row["cubin_bytes"] > 0 and row["compile_s"] > 0
    assert "rows_group_kernel" in text


def test_cases_that_once_ended_the_compiler_compile(tmp_path):
    """With one key, loops have no step, at which ptxas can crash. Operators of torch can call
    themselves without end on large tensors without memory."""
    matrix = (
        "op: compressed\naxes: {dtype: bfloat16, direction: [forward, backward]}\n"
        "include:\n- {B: 1, T: 32, HQ: 1, H: 1, D: 16, block: 32, stride: 16}\n"
        "- {B: 1, T: 32, HQ: 8, H: 1, D: 128, block: 32, stride: 16}\n"
        "- {B: 1, T: 16384, HQ: 64, H: 4, D: 128, block: 32, stride: 16}\n---\n"
        "op: sliding_window\naxes: {dtype: bfloat16, direction: [forward, backward]}\n"
        "include:\n- {B: 2, T: [1, 9], HQ: 1, H: 1, D: 16, window: 1, distribution: packed}\n"
    )
    code, rows, text = preflight(tmp_path, matrix, "sm_90")
    assert code == 0, text
    assert {r["status"] for r in rows} == {"ok"}, text
    assert {"band_dq_kernel", "band_dkv_kernel"} <= {r["kernel"] for r in rows}


@pytest.mark.parametrize("version", ["", pytest.param("3.1.0", marks=pytest.mark.full)])
def test_each_kind_of_failure_has_a_status(tmp_path, version):
    options = ["--triton", version] if version else []
    code, rows, text = preflight(tmp_path, MATRIX, "sm_89", "--kernels", HOSTILE, *options)
    if version and code == 3 and "installing Triton" in text:
        pytest.skip(f"no package index to take Triton {version} from")
    assert code == 1
    assert {r["triton"] for r in rows} == {version or targets.installed_triton()}
    found = {}
    for row in rows:
        found.setdefault(row["implementation"], []).append(row)
    assert "rows_group" not in found, "with --kernels only that file is compiled"
    assert {r["status"] for r in found["tensor_bound"]} == {"crashed"}
    assert "only integers and floats have a bitwidth" in found["tensor_bound"][0]["reason"]
    assert {r["status"] for r in found["typo"]} == {"compile_error"}
    assert "no_such_name" in found["typo"][0]["reason"]
    assert {r["status"] for r in found["eager"]} == {"skipped"}
    assert {r["status"] for r in found["raises"]} == {"crashed"}
    assert "not today" in found["raises"][0]["reason"]
    assert {r["status"] for r in found["dies"]} == {"crashed"}
    tuned = found["tuned"]
    assert {r["status"] for r in tuned} == {"ok"}, text
    assert {(r["constants"], r["warps"]) for r in tuned} == {
        (f"BLOCK={block}", warps) for block in (64, 128) for warps in (1, 4)
    }, "every autotune configuration, of an implementation that reads values of its inputs"


def test_kernels_of_another_compiler(tmp_path):
    code, rows, text = preflight(tmp_path, MATRIX, "sm_89,sm_90", "--kernels", OWN_COMPILER)
    assert code == 1, text
    found = {(r["architecture"], r["implementation"], r["constants"]): r for r in rows}
    right = found["sm_89", "own", "D=64"]
    assert right["status"] == "ok" and right["compiler"] == "ptxas" and right["cases"] == 2
    assert (right["shared_bytes"], right["warps"]) == (2048, 4)
    assert found["sm_90", "own", "D=64"]["shared_bytes"] == 2048, "without the driver's share"
    assert found["sm_90", "own", "D=32"]["shared_bytes"] == 0, "and none of it where there is none"
    assert 0 < right["registers"] < 64
    large = found["sm_89", "own", "D=128"]
    assert large["status"] == "out_of_memory" and "100.0 KiB of shared memory" in large["reason"]
    assert found["sm_90", "own", "D=128"]["status"] == "ok"
    broken = found["sm_90", "own", "D=256"]
    assert broken["status"] == "compile_error" and "any known instruction" in broken["reason"]
    assert "no cubin" in found["sm_90", "own", "D=512"]["reason"]
    older = found["sm_89", "newer", ""]
    assert (older["status"], older["reason"]) == ("unsupported", "it needs sm_90")
    assert found["sm_90", "newer", ""]["status"] == "ok"
    assert found["sm_90", "aborts", ""]["status"] == "crashed"
    assert "elsewhere" not in {name for _, name, _ in found}


def test_operators_and_their_backward(tmp_path):
    matrix = (
        "op: selection_ranges\n"
        "axes: {direction: [forward, backward], dtype: float16, B: 1, S: 4, G: 2, H: 2, D: 64,"
        " S_kv: 64, n_spans: 2, L: 32}\n"
    )
    file = Path(__file__).parent / "operator_backward.py"
    code, rows, text = preflight(tmp_path, matrix, "sm_89", "--kernels", file)
    assert code == 0, text
    found = {(r["implementation"], r["kernel"]): r for r in rows}
    for name in ("operator", "reads_values"):
        forward, backward = found[name, "forward_kernel"], found[name, "backward_kernel"]
        assert (forward["status"], forward["constants"], forward["cases"]) == ("ok", "BLOCK=64", 2)
        assert (backward["status"], backward["constants"]) == ("ok", "BLOCK=128")
        assert backward["cases"] == 1
    assert found["forward_only", "forward_kernel"]["cases"] == 1
    assert found["forward_only", ""]["status"] == "unsupported"
    assert "no backward" in found["forward_only", ""]["reason"]


def test_nothing_to_compile_is_an_error(tmp_path):
    matrix = "op: selection_varlen\naxes: {N: 2, H: 2, D: 64, L: 16}\n"
    code, rows, _ = preflight(tmp_path, matrix, "sm_89", "--kernels", HOSTILE)
    assert (code, rows) == (2, [])


def test_only_changed_kernels_are_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv(targets.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernels = tmp_path / "mine.py"

    def compile_kernels(source):
        kernels.write_text(source)
        code, rows, text = preflight(tmp_path, MATRIX, "sm_90", "--kernels", kernels)
        assert code == 0 and len(rows) == 2, text
        return sorted(row["cubin_bytes"] for row in rows)

    def cubins():
        paths = (tmp_path / "cache" / "preflight").rglob("*.cubin")
        return {path: path.stat().st_mtime_ns for path in paths}

    source = CALLER.read_text()
    first = compile_kernels(source)
    kept = cubins()
    assert len(kept) == 2
    assert compile_kernels(source) == first and cubins() == kept
    # Only one of the kernels calls the function that changes.
    compile_kernels(source.replace("x * 2.0", "x * x"))
    assert kept.items() <= cubins().items() and len(cubins()) == 3


def test_an_interrupt_ends_a_busy_compiler_at_once(tmp_path, monkeypatch):
    matrix, out, begun = tmp_path / "m.yaml", tmp_path / "p.parquet", tmp_path / "begun"
    matrix.write_text(MATRIX)
    monkeypatch.setenv("NSABENCH_TEST_BEGUN", str(begun))
    options = ["--arch", "sm_89,sm_80,sm_120", "--jobs", "1", "--kernels", str(FOR_EVER)]
    running = subprocess.Popen(
        [forked.shim(compiles=True), "preflight", str(matrix), *options, "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while not begun.exists():
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, text = running.communicate(timeout=60)
    assert running.returncode == 130, text
    assert not out.exists()


def test_an_unwritable_table_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv(targets.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "p.parquet"
    done = CliRunner().invoke(group, ["preflight", "--kernels", str(HOSTILE), "--out", str(out)])
    assert isinstance(done.exception, EnvironmentRefused) and str(out) in str(done.exception)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("option", "value"), [("--arch", "sm_88"), ("--triton", "3.3.0")])
def test_unknown_targets_are_usage_errors(tmp_path, option, value):
    out = str(tmp_path / "p.parquet")
    done = CliRunner().invoke(group, ["preflight", option, value, "--out", out])
    assert isinstance(done.exception, UsageError) and value in str(done.exception)


def test_every_triton_of_a_pair_is_locked_with_hashes():
    assert {pair.triton for pair in PAIRS} == set(targets.locked_tritons())
    assert all("--hash=sha256:" in text for text in targets.locked_tritons().values())
    assert targets.parse_tritons("3.9.0, 3.1.0,3.9.0") == ["3.9.0", "3.1.0"]


def test_a_wheel_with_another_hash_is_not_installed(tmp_path, monkeypatch):
    wrong = f"six==1.17.0 \\\n    --hash=sha256:{'0' * 64}\n"
    monkeypatch.setattr(targets, "locked_tritons", lambda: {"1.17.0": wrong})
    monkeypatch.setenv(targets.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(Exception, match="installing Triton"):
        targets.install_triton("1.17.0")
    assert not list((tmp_path / "triton").glob("[0-9]*"))


def test_architectures_that_a_triton_supports():
    assert targets.is_supported("3.0.0", "sm_90") and targets.is_supported("3.9.0", "sm_120")
    assert not targets.is_supported("3.1.0", "sm_100")
    assert not targets.is_supported("2.3.1", "sm_80")
    with pytest.raises(UsageError):
        targets.parse_architectures("sm_1")


def test_an_architecture_that_a_triton_does_not_know_is_unsupported(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "install_triton", lambda version: tmp_path)
    monkeypatch.setattr(run, "WarmProcess", lambda _: pytest.fail("it compiles"))
    given = {"architectures": [ARCHITECTURES["sm_100"]], "versions": ["3.1.0"]}
    [row] = run.run(lambda row: None, **given, matrices=["quick"], jobs=1)
    assert (row.status, row.failed) == (Status.UNSUPPORTED, False)
    assert "3.1.0" in row.reason and "sm_100" in row.reason
