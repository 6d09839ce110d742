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

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C ten times as fast, where it is
_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_SCALARS = frozenset(f"{_CORE}{kind}" for kind in ("bool", "float", "int", "null", "timestamp"))
_NONE = object()
_STARTS = frozenset({yaml.MappingStartEvent, yaml.SequenceStartEvent})
_ENDS = frozenset({yaml.MappingEndEvent, yaml.SequenceEndEvent})
_OWN = frozenset({None, "!", f"{_CORE}map", f"{_CORE}seq"})  # tags of a plain collection


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
        for _ in _bounded(LOADER(data), nodes):
            pass


def load(data: bytes, most: int, nodes: int) -> Any:
    """The first document as plain data; what an alias repeats is shared. Keys are texts.

    Raises as `refuse_unbounded`, also when it has more than `most` bytes, and `OutOfBounds` for
    what no file of ours has: a type by tag, a key that is given twice or is no text.
    """
    return _Builder().built(_bounded(LOADER(whole(data, most)), nodes))


def _bounded(parser: Any, nodes: int) -> Iterator[yaml.Event]:
    """The events of a parser, for as long as they are within bounds."""
    count, sizes = 0, dict[str, int]()
    begun: list[tuple[str | None, int]] = []  # anchor and count of every open collection
    try:
        # `yaml.parse` asks whether there is one before it takes it, which takes as long again.
        for event in iter(parser.get_event, None):
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
                raise OutOfBounds(
                    f"holds more than {nodes} values, as often as aliases repeat them"
                )
            yield event
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
        self._anchors: dict[str, Any] = {}
        self._plain: dict[str, Any] = {}  # values of plain scalars, which repeat a lot
        self._loader = yaml.SafeLoader("")

    def built(self, events: Iterator[Any]) -> Any:
        """The first document. In one loop, since a large plan has half a million events."""
        root: list[Any] = []  # the collection that a document is of
        into: Any = root
        key: Any = _NONE  # that the next value is of; _NONE where a key comes next, or none does
        around: list[Any] = []  # the open collections around it
        plain = self._plain
        for event in events:
            kind = type(event)
            expects_key = key is _NONE and type(into) is dict
            if kind is yaml.ScalarEvent:
                value = event.value
                if not expects_key:
                    known = plain.get(value, _NONE) if event.implicit[0] else _NONE
                    value = self._scalar(event) if known is _NONE else known
            elif kind in _ENDS:
                into = around.pop()
                continue
            elif kind in _STARTS:
                if expects_key:
                    raise OutOfBounds("has a key that is no text")
                if event.tag not in _OWN:
                    raise OutOfBounds("names a type by tag")
                value = {} if kind is yaml.MappingStartEvent else []
            elif kind is yaml.AliasEvent:
                if event.anchor not in self._anchors or expects_key:
                    raise OutOfBounds("has an alias of nothing")
                value = self._anchors[event.anchor]
            elif kind is yaml.DocumentEndEvent:
                break
            else:
                continue
            if expects_key:
                if value in into:
                    raise OutOfBounds(f"gives {value[:80]!r} twice")
                key = value
            elif key is _NONE:
                into.append(value)
            else:
                into[key] = value
                key = _NONE
            if kind is not yaml.AliasEvent and event.anchor is not None:
                self._anchors[event.anchor] = value
            if kind in _STARTS:
                around.append(into)
                into = value
        return root[0] if root else None

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
