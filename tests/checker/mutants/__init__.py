"""Small, plausible bugs, each put into a right kernel: the judge must find every one.

`softmax` and `gradient` hold the right kernel, in tiles as a device has it. The file of each family
brings its op to that form, right in `naive`, and wrong in one thing in each of its mutants. A
mutant is a function with `@mutant`: the case it is run on, what the bug is, and a phrase that the
diagnosis must hold. `judge` is the product's own.
"""
