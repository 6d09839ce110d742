"""Files that were made to hang or crash a command are refused with a short message."""

import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from nsabench.evidence.manifest import seal
from tests.evidence.manifest.test_tamper import seal_whatever
from tests.runs import SIGNER, claim_rows, make_run

MOST_BYTES = 400 << 20
MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "nsabench", *sys.argv[1:]])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
print("measured", peak, file=sys.stderr)
sys.exit(done.returncode)
"""


def refused(*arguments):
    """Check that a command refuses its input with little memory, and return its message."""
    line = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    message, _, peak = done.stderr.rpartition("measured ")
    assert done.returncode in (2, 4), message[-500:]
    assert int(peak) < MOST_BYTES and len(message) < 1000
    assert "Traceback" not in message and "error in nsabench" not in message
    return message


def test_a_table_that_claims_a_billion_rows(tmp_path):
    run = make_run(tmp_path / "run")
    seal(run, SIGNER)
    samples = run / "samples.parquet"
    table = pq.read_table(samples, columns=["run_id", "case_id", "implementation", "time_ms"])
    pq.write_table(pa.concat_tables([table] * 2000), samples, compression="zstd")
    claim_rows(samples, 10**9)
    assert samples.stat().st_size < 1_100_000
    sentence = r"samples\.parquet has \d+ rows, more than 50000000"
    seal_whatever(run, SIGNER)
    assert re.search(sentence, refused("verify", run))
    assert re.search(sentence, refused("archive", "add", run, "--to", tmp_path / "archive"))


def test_a_file_that_lies_about_what_it_unpacks_to_ends_in_a_sentence(tmp_path):
    """A large allocation replaces a page that takes more memory than a process may have."""
    code = (
        "import sys\nfrom nsabench import cli\nfrom nsabench.cli import verify\n"
        "verify.verify = lambda *_, **__: bytearray(9 << 30)\n"
        "sys.argv = ['nsabench', 'verify', '.']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert "what was read takes more than 8 GiB of memory" in done.stderr
