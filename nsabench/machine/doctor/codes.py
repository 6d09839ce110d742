"""What each problem code says, read from the source that reports it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from functools import cache

from nsabench.machine import doctor
from nsabench.machine.doctor.host import SWITCHES


@cache
def codes() -> dict[str, str]:
    """Code -> what is wrong, and the remedy; what depends on the machine is shown as `…`."""
    sentences: dict[str, list[str]] = {
        f"variable_{switch.name.lower()}": [
            f"{switch.name} is set: {switch.consequence}.\nremedy: Run `unset {switch.name}`."
        ]
        for switch in SWITCHES
    }
    for module in pkgutil.iter_modules(doctor.__path__, f"{doctor.__name__}."):
        tree = ast.parse(inspect.getsource(importlib.import_module(module.name)))
        for node in ast.walk(tree):
            match node:
                case ast.Call(args=[ast.Constant(value=str(code)), what, remedy], keywords=[]):
                    text = f"{_text(what)}\nremedy: {_text(remedy)}"
                    sentences.setdefault(code, []).append(text)
    return {code: "\n".join(of_code) for code, of_code in sorted(sentences.items())}


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text, parts))
    return "…"
