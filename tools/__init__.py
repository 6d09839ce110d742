"""Programs that a person runs, each by a recipe of the justfile. They belong neither to the tests
nor to a package."""
