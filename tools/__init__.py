"""Programs that a person runs on a GPU, by a recipe of the justfile: no test, and no part of a
package."""
