import pytest

from nsabench.evidence.manifest import seal
from tests.runs import SIGNER, Made, make_run


@pytest.fixture
def signed(tmp_path):
    """Return a function that makes a signed run in a folder of its own."""
    signer = SIGNER

    def make(number=0, **how):
        made = Made(run_id=f"20260101T000000Z-{number:06x}", seed=number, **how)
        folder = make_run(tmp_path / f"run{number}", made)
        seal(folder, signer)
        return folder

    return make
