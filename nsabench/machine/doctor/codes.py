"""What each problem code says, read from the source that reports it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache

from nsabench.machine import doctor
from nsabench.machine.doctor.variables import SWITCHES


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
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for code, what, remedy in _reported(function):
                    sentences.setdefault(code, []).append(f"{what}\nremedy: {remedy}")
    return {code: "\n".join(of_code) for code, of_code in sorted(sentences.items())}


def _reported(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Every `error(code, what, remedy)`, `warning(...)` and `note(...)` of a function."""
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(function):
        match node:
            case ast.Call(args=[ast.Constant(value=str(code)), what, remedy], keywords=[]):
                if code.isidentifier():
                    yield code, _text(what, named), _text(remedy, named)


def _text(node: ast.expr, named: Mapping[str, ast.expr]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, {}) for part in parts)
        case ast.Name(id=name) if name in named:
            return _text(named[name], {})
    return "…"
