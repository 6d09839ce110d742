"""Links in pages lead somewhere, lines are short, and paths in code exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = "<!-- Made by"
MOST_COLUMNS = 100


def is_page(path):
    """Return whether a page is not a report in the folder of a run."""
    return not any((folder / "plan.json").exists() for folder in path.parents)


PAGES = sorted(
    page
    for page in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docker/*.md"),
        *ROOT.glob("kernels/*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    if is_page(page)
)


def without_blocks(text):
    text = re.sub(r"<!-- results: .*?<!-- /results -->", "", text, flags=re.S)  # generated
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)


def anchors(page):
    """Return the anchors of all headings, as GitHub makes them."""
    names = set()
    for heading in re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = sum(
            name == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", name) is not None
            for name in names
        )
        names.add(f"{slug}-{count}" if count else slug)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_short(page):
    text = page.read_text()
    # The target of a link cannot be broken over lines.
    visible = [
        re.sub(r"\]\([^)\s]+\)", "]", line)
        for line in without_blocks(text).splitlines()
        if not line.lstrip().startswith("|") and "://" not in line
    ]
    assert [line for line in visible if len(line) > MOST_COLUMNS] == []


def test_every_page_is_reached_from_the_first_one():
    reached, open_pages = set(), [ROOT / "README.md"]
    while open_pages:
        page = open_pages.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", without_blocks(page.read_text()))
        open_pages += [(page.parent / t).resolve() for t in targets if "://" not in t]
    assert set(PAGES) - reached == set()


def test_pages_that_code_names_exist():
    sources = [
        path
        for room in ("nsabench", "kernels", "tests", "docker", "matrices")
        for kind in ("*.py", "*.cu", "*.cuh", "*.yaml", "*.j2")
        for path in (ROOT / room).rglob(kind)
    ]
    named = {
        name
        for path in [*sources, ROOT / "justfile", ROOT / "pyproject.toml"]
        for name in re.findall(r"\b(?:docs|notes)/[\w./-]+?\.md\b", path.read_text())
    }
    assert len(named) > 3
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_pages_name_exists(page):
    if page.name == "CHANGELOG.md":
        return
    room = r"(?:nsabench|kernels|tests|matrices|docker|docs)"
    named = re.findall(rf"`({room}/[\w./-]+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
