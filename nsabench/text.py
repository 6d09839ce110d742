"""Escape text from elsewhere, so that no terminal, Markdown or page obeys it.

Names, reasons, logs and versions come from the author of a run.
"""

import re

# A letter with more than three accents may cover the lines above and below it.
_ACCENT = r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_PILED = re.compile(f"({_ACCENT}{{3}}){_ACCENT}+")
# These are invisible, although Unicode calls them letters, marks or symbols.
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
_BLANKS = frozenset(_BLANK) | {chr(c) for c in range(0xFE00, 0xFE10)}
# Renderers of Markdown turn these into links, mentions or pictures, even if they are escaped.
_LIVE = re.compile(
    r"(?:https?|ftp)://[^\s`|<>()\[\]]+|www\.[^\s`|<>()\[\]]+"
    r"|(?<!\w)@[\w-]+|:[\w+-]+:|(?<!\w)#\d+"
)
# Markdown does not treat an underscore between letters as a mark.
_MARKS = re.compile(r"([\\`*\[\]<>|#~$]|(?<![^\W_])_|_(?![^\W_]))")


def shown(value: object, *, lines: bool = False) -> str:
    r"""Return text with invisible and control characters as `\x1b`. lines: keep `\n` and `\t`."""
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
    # Line ends within a reason are only layout.
    return " ".join(re.split(r"[ \t\r\n]+", str(value).strip(" \t\r\n")))
