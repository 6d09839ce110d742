"""What an installed distribution says of itself, for those that tests make up."""


def describe(folder, name, entry_points):
    """Have the folder hold version 1.0 of a distribution with these entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
