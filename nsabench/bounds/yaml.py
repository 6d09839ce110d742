"""YAML within bounds: its size, its depth, and how often aliases repeat what.

The events of the parser are counted before anything is built of them: composing recurses, in C, and
an alias costs a byte or two however much it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from nsabench.bounds import limits
from nsabench.bounds.content import OutOfBounds, whole

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_SCALARS = frozenset(f"{_CORE}{kind}" for kind in ("bool", "float", "int", "null", "timestamp"))
_NONE = object()
_STARTS = frozenset({yaml.MappingStartEvent, yaml.SequenceStartEvent})
_ENDS = frozenset({yaml.MappingEndEvent, yaml.SequenceEndEvent})


def refuse_unbounded(text: str, nodes: int) -> None:
    """Raises `OutOfBounds` when any of the documents in `text` is too large, too deep, or repeats
    too much, for whoever then composes it with `yaml.SafeLoader`, whose parser this is, too; and
    `yaml.YAMLError` when it is not YAML."""
    for _ in _bounded(yaml.SafeLoader(text), nodes):
        pass


def refuse_large(data: bytes, most: int, nodes: int) -> None:
    """Raises `OutOfBounds` for YAML of ours that `load` would not read again."""
    whole(data, most)
    # An entry of a mapping, which is two values, has one of these, and so has an item of a list:
    # where they are few, and nothing is repeated, no parser need count.
    marks = sum(map(data.count, b":?-[{,"))
    if b"*" in data or 2 * marks + 1 > nodes:
        for _ in _bounded(_LOADER(data), nodes):
            pass


def load(data: bytes, most: int, nodes: int) -> Any:
    """The first document as plain data; what an alias repeats is shared. Keys are texts.

    Raises as `refuse_unbounded`, also when it has more than `most` bytes, and `OutOfBounds` for
    what no file of ours has: a type by tag, a key that is given twice or is no text.
    """
    build = _Builder()
    take = build.take
    for event in _bounded(_LOADER(whole(data, most)), nodes):
        if type(event) is yaml.DocumentEndEvent:
            break
        take(event)
    return build.root


def _bounded(parser: Any, nodes: int) -> Iterator[yaml.Event]:
    """The events of a parser, for as long as they are within bounds."""
    count, sizes = 0, dict[str, int]()
    begun: list[tuple[str | None, int]] = []  # anchor and count of every open collection
    for event in _events(parser):
        kind = type(event)
        # Most are scalars, and most of those are short.
        if kind is yaml.ScalarEvent:
            if len(event.value) > limits.NUMBER:
                _refuse_long_number(event)
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif kind in _STARTS:
            begun.append((event.anchor, count))
            if len(begun) > limits.DEPTH:
                raise _too_deep()
            count += 1
        elif kind in _ENDS:
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif kind is yaml.AliasEvent:
            if any(anchor == event.anchor for anchor, _ in begun):
                raise OutOfBounds("refers to itself")
            count += sizes.get(str(event.anchor), 1)
        elif kind is yaml.DocumentStartEvent:
            sizes.clear()
        if count > nodes:
            raise OutOfBounds(f"holds more than {nodes} values, as often as aliases repeat them")
        yield event


def _events(parser: Any) -> Iterator[Any]:
    try:
        # `yaml.parse` asks whether there is one before it takes it, which takes as long again.
        yield from iter(parser.get_event, None)
    except yaml.MarkedYAMLError as error:
        # libyaml has a bound of its own, and reads so far ahead that it may meet it first.
        if error.problem == "exceeded maximum nesting depth":
            raise _too_deep() from None
        raise
    finally:
        parser.dispose()


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
        self._into: Any = None  # the collection that the next value is of; None: of none
        self._key: Any = _NONE  # that the value is of; _NONE where a key comes next, or none does
        self._around: list[tuple[Any, Any]] = []  # the open collections around it, and their keys
        self._anchors: dict[str, Any] = {}
        self._plain: dict[str, Any] = {}  # values of plain scalars, which repeat a lot
        self._loader = yaml.SafeLoader("")

    def take(self, event: Any) -> None:
        kind = type(event)
        expects_key = self._key is _NONE and type(self._into) is dict
        if kind is yaml.ScalarEvent:
            self._add(event.value if expects_key else self._scalar(event), event.anchor)
        elif kind in _STARTS:
            if expects_key:
                raise OutOfBounds("has a key that is no text")
            if event.tag not in (None, "!", f"{_CORE}map", f"{_CORE}seq"):
                raise OutOfBounds("names a type by tag")
            value: Any = {} if kind is yaml.MappingStartEvent else []
            self._add(value, event.anchor)
            self._around.append((self._into, self._key))
            self._into, self._key = value, _NONE
        elif kind in _ENDS:
            self._into, self._key = self._around.pop()
        elif kind is yaml.AliasEvent:
            if event.anchor not in self._anchors or expects_key:
                raise OutOfBounds("has an alias of nothing")
            self._add(self._anchors[event.anchor], None)

    def _add(self, value: Any, anchor: str | None) -> None:
        into = self._into
        if type(into) is list:
            into.append(value)
        elif into is None:
            self.root = value
        elif self._key is _NONE:
            if value in into:
                raise OutOfBounds(f"gives {value[:80]!r} twice")
            self._key = value
        else:
            into[self._key] = value
            self._key = _NONE
        if anchor is not None:
            self._anchors[anchor] = value

    def _scalar(self, event: Any) -> Any:
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
