"""Escape text of a run, so that terminals, Markdown and pages show it and do not obey it.

Names, reasons, logs and versions come from the author of a run, and may be hostile.
"""

import re

# A letter with more than three accents may cover the lines above and below it.
_ACCENT = r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_PILED = re.compile(f"({_ACCENT}{{3}}){_ACCENT}+")
# These characters are invisible, although Unicode calls them letters, marks or symbols.
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
_BLANKS = frozenset(_BLANK) | {chr(c) for c in range(0xFE00, 0xFE10)}
# Renderers of Markdown turn such text into links, mentions or pictures, even if it is escaped.
_LIVE = re.compile(
    r"(?:https?|ftp)://[^\s`|<>()\[\]]+|www\.[^\s`|<>()\[\]]+"
    r"|(?<!\w)@[\w-]+|:[\w+-]+:|(?<!\w)#\d+"
)
# An underscore between letters or digits needs no escape in Markdown.
_MARKS = re.compile(r"([\\`*\[\]<>|#~$]|(?<![^\W_])_|_(?![^\W_]))")


def shown(value: object, *, lines: bool = False) -> str:
    r"""Replace invisible characters by escapes such as `\x1b`; if `lines`, keep `\n` and `\t`."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    characters = [
        c
        if (c.isprintable() and c not in _BLANKS) or c in kept
        else c.encode("unicode_escape").decode()
        for c in text
    ]
    return _PILED.sub(r"\1…", "".join(characters))


def markdown(value: object) -> str:
    text, parts, end = shown(_on_one_line(value)), [], 0
    for live in _LIVE.finditer(text):
        parts += [_marked(text[end : live.start()]), code(live.group())]
        end = live.end()
    return "".join([*parts, _marked(text[end:])])


def _marked(text: str) -> str:
    return _MARKS.sub(r"\\\1", text).replace("&", "&amp;")


def code(value: object) -> str:
    text = shown(_on_one_line(value)).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def _on_one_line(value: object) -> str:
    # Line ends in a text such as a reason have no meaning.
    return " ".join(re.split(r"[ \t\r\n]+", str(value).strip(" \t\r\n")))
