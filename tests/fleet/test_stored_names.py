"""Which objects of a bucket are the end of a shard; a folder stands for the bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("obstore")
from nsabench.fleet import stored
from nsabench.fleet.folder import FleetFolder, make
from nsabench.fleet.status import Stage

SEAL = "manifest.dsse.json"
STRAYS = [
    f"shards/1/{SEAL}",
    f"shards/1/run/more/{SEAL}",
    f"shards/1/{SEAL}/other",
    f"shards/01/run/{SEAL}",
    f"shards/\u00b2/run/{SEAL}",  # a digit by isdigit(), and no number
    f"shards/\u0661/run/{SEAL}",  # the 1 of Arabic
    f"elsewhere/1/run/{SEAL}",
    f"unfinished/1/run/00000003/{SEAL}",
    "unfinished/1/run/mark.json",
    "unfinished/1/run/00000003/more/mark.json",
    "unfinished/1/run/\u00b2/mark.json",
    "unfinished/1/run/last/mark.json",
    "unfinished/\u00b2/run/00000003/mark.json",
]


@pytest.fixture
def fleet(tmp_path: Path) -> FleetFolder:
    return make(tmp_path / "fleet", 2, ["selection_rows"], [], str(tmp_path / "bucket"))


def put(fleet: FleetFolder, *names: str) -> str:
    location = fleet.read().results
    for name in names:
        path = Path(location, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return location


@pytest.mark.parametrize("name", STRAYS)
def test_a_stray_name_is_no_shard(fleet: FleetFolder, name: str) -> None:
    location = put(fleet, name)
    assert stored.stages(location) == {}
    assert stored.fetch(fleet, location) == {}
    assert not stored.fetch_stopped(fleet, 1, location)
    assert not fleet.shard(1).exists()


def test_all_agree_in_what_is_whole(fleet: FleetFolder) -> None:
    stopped = [f"unfinished/{n}/{run}/mark.json" for n in (1, 2) for run in ("a/00000003", "b/7")]
    location = put(fleet, *stopped, f"shards/1/b/{SEAL}", f"shards/1/a/{SEAL}")
    assert stored.stages(location) == {1: Stage.WHOLE, 2: Stage.STOPPED}
    assert stored.fetch_stopped(fleet, 1, location)
    assert (fleet.shard(1) / SEAL).read_text() == f"shards/1/a/{SEAL}"
    assert stored.fetch(fleet, location) == {1: ["a", "b"]}


def test_what_has_the_most_lines_goes_on(fleet: FleetFolder) -> None:
    for lines in ("00000009", "100000000"):  # the number, and not its name
        put(fleet, f"unfinished/1/a/{lines}/mark.json", f"unfinished/1/a/{lines}/plan.yaml")
    assert stored.fetch_stopped(fleet, 1, fleet.read().results)
    assert (fleet.shard(1) / "plan.yaml").read_text() == "unfinished/1/a/100000000/plan.yaml"
