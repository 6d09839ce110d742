"""On a full disk, a run ends with one sentence and a remedy, and keeps what it measured. The file
that is about to be written is a link to /dev/full."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench import files
from nsabench.conclusion import finish
from nsabench.errors import EnvironmentRefused
from nsabench.evidence.manifest import verify
from nsabench.model.plan import Plan
from nsabench.output.terminal import Progress, console
from nsabench.running import log, run
from nsabench.running.folder import RunFolder
from nsabench.running.run import Finished
from nsabench.signing import Signer
from nsabench.verdicts.results import assemble
from tests.runs import Made, make_plan, make_run

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
FULL = "cannot be written: No space left on device"


def full(monkeypatch, name):
    """Let the disk be full for the file of this name once it is begun."""
    begun = files.fresh

    def fresh(path):
        begun(path)
        if path.name == name:
            path.unlink()
            path.symlink_to("/dev/full")

    monkeypatch.setattr(files, "fresh", fresh)


def test_at_the_start(tmp_path, monkeypatch):
    full(monkeypatch, "plan.tmp")
    with pytest.raises(EnvironmentRefused, match=FULL) as caught:
        run.start(make_plan(Made()), tmp_path / "run", Progress(console()))
    assert caught.value.remedy == f"make room, then remove {tmp_path / 'run'} and start again."


@pytest.mark.parametrize("name", ["thresholds.tmp", "selection_report.tmp", "report.tmp"])
def test_at_the_end(tmp_path, monkeypatch, name):
    signer = Signer(Ed25519PrivateKey.generate(), ephemeral=False)
    folder = RunFolder(make_run(tmp_path / "run", signer=signer))
    plan = Plan.read(folder.plan)
    results = assemble(plan.run_id, folder.parts())
    _, origin = log.examine(folder.log)
    finished = Finished(folder, plan, results, 1.0, 1.0, signer, origin.end)
    with monkeypatch.context() as no_room:
        full(no_room, name)
        with pytest.raises(EnvironmentRefused, match=FULL) as caught:
            finish(finished)
    assert caught.value.remedy == f"make room, then go on with --resume {folder.path}."
    finish(finished)
    assert verify(folder.path).broken is None
