"""nsabench explain"""

from __future__ import annotations

from dataclasses import asdict
from textwrap import indent

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.output import explain, grouped


@_help.command("explain")
@click.argument("word", required=False)
@_options.as_json
def command(word: str | None, as_json: bool) -> None:
    """Explain a word of the output.

    A word is a status, verdict, check, column or op. Without a WORD, all are
    listed by kind.

    Example: nsabench explain implausible
    """
    if word is None:
        meanings = [meaning for known in explain.meanings().values() for meaning in known]
    else:
        meanings = explain.explain(word)
    if as_json:
        say_json([asdict(meaning) for meaning in meanings])
    elif word is None:
        for kind, words in grouped(meanings, lambda meaning: meaning.kind).items():
            say(f"{kind}: {', '.join(meaning.word for meaning in words)}")
    else:
        say("\n\n".join(f"{m.word} ({m.kind})\n{indent(m.text, '  ')}" for m in meanings))
