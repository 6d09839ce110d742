"""The packages of pyproject.toml are all packages of the checkout."""

import tomllib
from pathlib import Path

import nsabench


def test_every_package_is_installed() -> None:
    root = Path(nsabench.__file__).parents[1]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(file.parent.relative_to(root).parts)
        for file in root.glob("nsabench/**/__init__.py")
    }
    assert there - set(listed) == set()
