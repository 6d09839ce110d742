"""YAML within bounds: its size, its depth, and how often aliases repeat what.

The events of the parser are counted before anything is built of them: composing recurses, in C, and
an alias costs a byte or two however much it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from nsabench.bounds import limits
from nsabench.bounds.content import OutOfBounds, whole

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_SCALARS = frozenset(f"{_CORE}{kind}" for kind in ("bool", "float", "int", "null", "timestamp"))
_NONE = object()


def refuse_unbounded(text: str, nodes: int) -> None:
    """Raises `OutOfBounds` when any of the documents in `text` is too large, too deep, or repeats
    too much, for whoever then composes it with `yaml.SafeLoader`, whose parser this is, too; and
    `yaml.YAMLError` when it is not YAML."""
    for _ in _bounded(yaml.parse(text, Loader=yaml.SafeLoader), nodes):
        pass


def refuse_large(data: bytes, most: int, nodes: int) -> None:
    """Raises `OutOfBounds` for YAML of ours that `load` would not read again."""
    if len(whole(data, most)) > nodes:  # no value has less than a byte
        for _ in _bounded(yaml.parse(data, Loader=_LOADER), nodes):
            pass


def load(data: bytes, most: int, nodes: int) -> Any:
    """The first document as plain data; what an alias repeats is shared. Keys are texts.

    Raises as `refuse_unbounded`, also when it has more than `most` bytes, and `OutOfBounds` for
    what no file of ours has: a type by tag, a key that is given twice or is no text.
    """
    build = _Builder()
    take = build.take
    for event in _bounded(yaml.parse(whole(data, most), Loader=_LOADER), nodes):
        if type(event) is yaml.DocumentEndEvent:
            break
        take(event)
    return build.root


def _bounded(events: Iterable[yaml.Event], nodes: int) -> Iterator[yaml.Event]:
    """The events, for as long as they are within bounds."""
    count, sizes = 0, dict[str, int]()
    begun: list[tuple[str | None, int]] = []  # anchor and count of every open collection
    for event in _parsed(events):
        # Most are scalars, and most of those are short.
        if isinstance(event, yaml.ScalarEvent):
            if len(event.value) > limits.NUMBER:
                _refuse_long_number(event)
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, count))
            if len(begun) > limits.DEPTH:
                raise _too_deep()
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in begun):
                raise OutOfBounds("refers to itself")
            count += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        if count > nodes:
            raise OutOfBounds(f"holds more than {nodes} values, as often as aliases repeat them")
        yield event


def _parsed(events: Iterable[yaml.Event]) -> Iterator[yaml.Event]:
    try:
        yield from events
    except yaml.MarkedYAMLError as error:
        # libyaml has a bound of its own, and reads so far ahead that it may meet it first.
        if error.problem == "exceeded maximum nesting depth":
            raise _too_deep() from None
        raise


def _too_deep() -> OutOfBounds:
    return OutOfBounds(f"is nested too deeply, over {limits.DEPTH} levels")


def _refuse_long_number(event: yaml.ScalarEvent) -> None:
    # `1:1:1...` is a number to base 60, and its value takes the square of its length to compute.
    text = event.value
    plain = event.implicit[0] or event.tag not in (None, "!", _TEXT)
    if plain and len(text) > limits.NUMBER and text[:1] in "+-.0123456789" and " " not in text:
        raise OutOfBounds(f"has a number of {len(text)} characters")


class _Builder:
    """Plain data of events, without recursion."""

    def __init__(self) -> None:
        self.root: Any = None
        self._open: list[tuple[Any, str | None]] = []
        self._keys: list[Any] = []  # of each open mapping the key whose value comes next
        self._anchors: dict[str, Any] = {}
        self._plain: dict[str, Any] = {}  # values of plain scalars, which repeat a lot
        self._loader = yaml.SafeLoader("")

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if self._expects_key() else self._scalar(event)
            self._add(value, event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            if self._expects_key():
                raise OutOfBounds("has a key that is no text")
            if event.tag not in (None, "!", f"{_CORE}map", f"{_CORE}seq"):
                raise OutOfBounds("names a type by tag")
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._add(value, event.anchor)
            self._open.append((value, event.anchor))
            self._keys.append(_NONE)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors or self._expects_key():
                raise OutOfBounds("has an alias of nothing")
            self._add(self._anchors[event.anchor], None)

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], dict) and self._keys[-1] is _NONE

    def _add(self, value: Any, anchor: str | None) -> None:
        if not self._open:
            self.root = value
        elif isinstance(parent := self._open[-1][0], list):
            parent.append(value)
        elif self._keys[-1] is _NONE:
            if value in parent:
                raise OutOfBounds(f"gives {value[:80]!r} twice")
            self._keys[-1] = value
        else:
            parent[self._keys[-1]] = value
            self._keys[-1] = _NONE
        if anchor is not None:
            self._anchors[anchor] = value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text, tag = event.value, event.tag
        if tag in (None, "!"):
            if not event.implicit[0]:
                return text
            if text not in self._plain:
                tag = self._loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
                self._plain[text] = self._value(tag, text)
            return self._plain[text]
        if tag != _TEXT and tag not in _SCALARS:
            raise OutOfBounds("names a type by tag")
        return self._value(tag, text)

    def _value(self, tag: str, text: str) -> Any:
        if tag not in _SCALARS:
            return text
        construct = yaml.SafeLoader.yaml_constructors[tag]
        try:
            return construct(self._loader, yaml.ScalarNode(tag, text))
        except (KeyError, IndexError, AttributeError, ValueError, OverflowError):
            kind = tag.removeprefix(_CORE)
            raise OutOfBounds(f"holds {text[:80]!r}, which is no {kind}") from None
