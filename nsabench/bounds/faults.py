"""What is wrong with a document, in a sentence that does not grow with the document."""

from __future__ import annotations

from pydantic import ValidationError

from nsabench.bounds import limits


def first_fault(error: ValidationError) -> str:
    """The first fault by field and message; of very many, which would all be spelled out for it,
    their number."""
    count = error.error_count()
    if count > limits.FAULTS:
        return f"it has {count} faults"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])
