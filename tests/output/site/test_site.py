"""A site of runs and archives, from a folder and in a browser without a network."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.archive import Archive
from nsabench.evidence.manifest import seal
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.vocabulary import Catch, Status
from nsabench.output import site
from nsabench.output.site.build import SiteRun, payments
from nsabench.output.site.build import index as index_of
from nsabench.output.site.build import page as page_of
from tests.output.report.conftest import browser as browser
from tests.runs import SIGNER, Made, make_run
from tests.verdicts.test_break_even import ladder

SIGNED = Made(run_id="20260101T000000Z-aaaaaa")
WRONG = Made(
    run_id="20260301T000000Z-bbbbbb",
    created=datetime(2026, 3, 1, tzinfo=UTC),
    torch="2.12.0",
    status=lambda n: Status.WRONG if n == 64 else Status.OK,
)
OTHER = replace(SIGNED, run_id="20260201T000000Z-cccccc", gpu="NVIDIA A100")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    archive = archive_of(folder, SIGNED, WRONG, OTHER)
    return site.write([archive], folder / "out")


def archive_of(folder, *runs):
    archive = Archive(str(folder / "archive"), create=True)
    for made in runs:
        run = make_run(folder / made.run_id, made)
        seal(run, SIGNER)
        archive.add(run)
    return archive.store.location


@pytest.mark.parametrize(("width", "dark"), [(375, True), (1440, False)])
def test_it_works_from_a_folder(page, browser, width, dark):
    of_runs = list(page.parent.rglob("pages/*/report.html"))
    assert len(of_runs) == 3
    for one in [page, *of_runs]:
        browser.open(one, width=width, dark=dark)
        assert browser.errors() == [] and browser.requests() == []
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.obstacles() == []
        links = browser.js(
            "return [...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))"
        )
        for link in links:
            name, _, anchor = link.partition("#")
            assert (one.parent / unquote(name)).exists(), link
            if anchor:
                assert browser.js("return !!document.getElementById(arguments[0])", anchor), link


def test_it_says_what_each_run_decides_and_who_says_so(page):
    text = re.sub(r"<script.*?</script>|<[^>]+>", " ", page.read_text(), flags=re.S)
    text = " ".join(text.split())
    assert text.count("worth using from L = 256") == 3
    assert "3 runs, 2026-01-01 to 2026-03-01" in text
    assert "Sparse attention on NVIDIA A100, NVIDIA H200" in text
    assert text.count("Signed with the key") == 3


def test_a_decision_names_the_trust_of_its_run(tmp_path):
    archive = archive_of(tmp_path, SIGNED)
    keyid = SIGNER.keyid
    decided = []
    for trusted, name in ((frozenset(), "any"), (frozenset({keyid}), "mine")):
        text = site.write([archive], tmp_path / name, trusted).read_text()
        decided += re.findall(r'href="#run-[^"]*">2026.01.01, (\w+)<', text)
    assert set(decided) == {Trust.EPHEMERAL, Trust.PINNED}
    with pytest.raises(VerificationFailed, match="pinned is required"):
        site.write([archive], tmp_path / "refused", require=Trust.PINNED)


def test_no_decision_stands_without_its_regime(tmp_path):
    archive = archive_of(tmp_path, replace(SIGNED, queue_ratio=lambda _: 0.5))
    text = site.write([archive], tmp_path / "out").read_text()
    rows = re.findall(
        r'<td data-title="regime">(\w+)</td>\s*<td data-title="decision".*?><strong>(.*?)</strong>',
        text,
    )
    assert rows == [
        ("device", "worth using from L = 256"),
        ("queue", "not worth using at any length"),
    ]


def test_it_says_first_from_where_on_an_op_pays(tmp_path, browser):
    records = ladder({4096: 0.5, 8192: 0.9, 16384: 1.6, 32768: 2.5})
    run = SiteRun("20260401T000000Z-dddddd", "2026-04-01 00:00", Trust.UNPINNED, "k", records, [])
    index, page = tmp_path / "index.html", tmp_path / "page.html"
    index.write_text(index_of([run]))
    page.write_text(page_of(run))
    for one in (index, page):
        browser.open(one, width=375)
        text = browser.js("return document.querySelector('#pays').textContent")
        assert "pays from T = 16384" in text, text
        assert browser.errors() == [] and browser.obstacles() == []
        assert browser.js("return document.documentElement.scrollWidth") <= 375
    assert page.read_text().count("<title>best alternative, ") >= 4, "the lines are drawn"


def test_what_pays_is_told_once_by_who_tested_most_and_of_pairs_first():
    """Runs of a torch with its own Triton come first. The run with fewer lengths is left out."""

    def run(of, lengths, **more):
        records = ladder(lengths, torch="2.11.0+cu130", **more)
        return SiteRun(of, f"2026-04-0{of[-1]} 00:00", Trust.UNPINNED, "k", records, [])

    whole = {8192: 0.9, 16384: 1.6, 32768: 2.5}
    other, few, most = (
        run("other-3", whole, triton="3.1.0"),
        run("few-2", {8192: 0.9}, triton="3.6.0"),
        run("most-1", whole, triton="3.6.0"),
    )
    assert [of.run_id for of, _ in payments([other, few, most])] == ["most-1", "other-3"]
    # This run decides nothing.
    missed = run("missed-4", {**whole, 65536: 4.0}, triton="3.6.0")
    missed = replace(missed, records=[replace(r, caught=Catch.MISSED) for r in missed.records])
    assert [of.run_id for of, _ in payments([missed, other, few, most])] == ["most-1", "other-3"]
    text = index_of([other, few, most])
    said = re.findall(
        r"<strong>(.*?)</strong></td>\s*<td data-title=.against[^✓]*?Triton ([0-9.]+)", text
    )
    assert said == [("pays from T = 16384", "3.6.0"), ("pays from T = 16384", "3.1.0")]


def test_what_is_downloaded_can_be_verified(page):
    archive = Archive(str(page.parent / "archive")).survey()
    assert len(archive.sound) == 3 and not archive.broken and not archive.stray


def test_what_an_archive_holds_has_its_page_and_its_downloads(page, browser):
    [one] = page.parent.glob(f"pages/{OTHER.run_id}/report.html")
    browser.open(one)
    assert len(browser.rows("candidates")) == 16 and len(browser.rows("records")) == 30
    assert any("H4 D64" in text for text in browser.texts("heat"))
    text = browser.js("return document.body.textContent")
    assert "worth using from L = 256" in text and "16 caught" in text
    links = browser.js(
        "return [...document.querySelectorAll('#trust a')].map(a => a.getAttribute('href'))"
    )
    files = [one.parent / unquote(link) for link in links]
    kept = {p.read_bytes() for p in page.parent.rglob(f"*run={OTHER.run_id}/*")}
    assert {p.read_bytes() for p in files} == kept and len(kept) == 4


def test_what_makes_no_site(tmp_path):
    archive = archive_of(tmp_path, SIGNED)
    with pytest.raises(UsageError, match="is not empty"):
        site.write([archive], tmp_path)
    for inside in (Path(archive) / "site", tmp_path / SIGNED.run_id / "site"):
        with pytest.raises(UsageError, match="must not change"):
            site.write([archive], inside)
    for table in Path(archive).rglob("records-*"):
        table.write_bytes(b"another")
    with pytest.raises(VerificationFailed, match="is not sound"):
        site.write([archive], tmp_path / "out")
