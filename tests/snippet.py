"""Runs the code that comes on its standard input, in whichever process it is imported."""

import sys

if __name__ == "__main__":
    exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
