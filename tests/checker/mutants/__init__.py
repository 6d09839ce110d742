"""Mutants: right kernels, each with one small, plausible bug that the checker must find.

`kernel` and `right` hold the right kernel of each op, which reads keys in tiles as on a GPU.
`selections`, `bands` and `backward` list the mutants. Each line holds the case on which the mutant
runs, the bug, the id of its diagnosis, and the one thing that is changed.
"""
