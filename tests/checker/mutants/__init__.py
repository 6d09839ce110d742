"""Small, plausible bugs, each put into a right kernel: the judge must find every one.

`kernel` and `right` hold the right kernel of each op, in tiles as a device has it. `selections`,
`bands` and `backward` list the mutants, a line each. A line says on which case the mutant is run,
what the bug is, the id of its diagnosis, and the one thing that is changed.
"""
