"""A torch and a Triton that do not belong together are marked wherever they are named."""

import pytest
import yaml
from rich.console import Console

from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from nsabench.evidence.manifest import seal, verify
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.output import site
from nsabench.output.report import Facts
from nsabench.preflight import report
from nsabench.preflight.launch import CompiledLaunch
from nsabench.verdicts import thresholds_yaml
from tests.commands import invoke
from tests.runs import SIGNER, Made, make_run

SAID = "unpaired: this torch belongs with triton 3.7.1"
OTHER = Made(torch="2.13.0", triton="3.6.0")


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("unpaired") / "run", OTHER)
    seal(run, SIGNER)
    return run


@pytest.mark.parametrize(
    ("torch", "triton", "said"),
    [
        ("2.13.0", "3.6.0", SAID),
        ("2.13.0+cu130", "3.7.1", ""),
        ("2.13.0", None, ""),
        (None, "3.6.0", ""),
        ("9.9.0", "3.6.0", ""),
    ],
)
def test_one_place_says_it(torch, triton, said):
    assert describe_mismatch(torch, triton) == said


def test_a_run(signed):
    [decision] = Facts.read(signed).decisions
    assert decision.versions == f"torch 2.13.0, triton 3.6.0, CUDA 13.0 ({SAID})"
    [written] = yaml.safe_load(thresholds_yaml.as_yaml([decision]))["decisions"]
    assert written["unpaired"] == SAID and SAID in thresholds_yaml.as_text([decision])
    found = verify(signed)
    assert found.broken is None and found.details["environment"].endswith(f"; {SAID}")


def test_an_archive_and_its_site(signed, tmp_path):
    archive = Archive(str(tmp_path / "archive"), create=True)
    archive.add(signed)
    assert f"triton 3.6.0  {SAID}  " in invoke("archive", "verify", archive.store.location).stdout
    assert query(archive, "SELECT unpaired FROM runs").to_pylist() == [{"unpaired": SAID}]
    text = site.write([archive.store.location], tmp_path / "out").read_text()
    for part in ("decisions", "boards", "runs"):
        section = text.partition(f'<section id="{part}"')[2].partition("</section>")[0]
        assert SAID in section, part
    of_run = next((tmp_path / "out" / "pages").rglob("report.html")).read_text()
    assert SAID in of_run


def test_a_preflight():
    words = ("op", "implementation", "kernel", "signature", "constants", "options", "example")

    def launch(triton):
        return CompiledLaunch(
            triton=triton,
            torch="2.13.0",
            architecture="sm_90",
            cases=1,
            status="ok",
            reason="",
            **dict.fromkeys(words, "x"),
        )

    console = Console(width=120, record=True)
    console.print(report.render([launch("3.6.0"), launch("3.7.1")]))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert f"Triton 3.6.0, {SAID}" in lines and "Triton 3.7.1" in lines
