"""How much of a file from elsewhere is read: its size, its depth, its rows, what it unpacks to.

Whoever made a run, an archive or a table may have meant harm. Every such file is read through these
modules, a format each, with a limit for each kind of file in `limits`. What exceeds one, or is no
file, is `OutOfBounds` with one sentence, before it has cost more than the limit.
"""

from nsabench.bounds import limits
from nsabench.bounds.content import OutOfBounds, opened, read, tail
from nsabench.bounds.faults import first_fault

__all__ = ["OutOfBounds", "first_fault", "limits", "opened", "read", "tail"]
