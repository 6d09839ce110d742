"""Compile kernels for GPUs that this machine does not have."""

import os
import subprocess
import sys

import pyarrow.parquet as pq


def compiled(folder, matrix, architectures):
    """The table that `nsabench preflight` leaves of a matrix: a row for each variant of each
    kernel. folder: is there, and takes its files."""
    file, table = folder / "matrix.yaml", folder / "compiled.parquet"
    file.write_text(matrix)
    command = [sys.executable, "-m", "nsabench", "preflight", file, "--arch", architectures]
    done = subprocess.run(
        [*command, "--out", table],
        capture_output=True,
        text=True,
        timeout=250,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return pq.read_table(table).to_pylist()
