import importlib
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import indent

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.output import explain, grouped
from nsabench.output.explain import Meaning


@_help.command("explain")
@click.argument("word", required=False)
@_options.as_json
def command(word: str | None, as_json: bool) -> None:
    """Explain a word of the output.

    WORD is any word or name of the output, the help, the pages or the tables. Without a WORD, all
    are listed by kind.

    Example: nsabench explain implausible
    """
    if word is None:
        known = explain.meanings(_list_options())
        meanings = [meaning for same in known.values() for meaning in same]
    else:
        meanings = explain.explain(word, _list_options())
    if as_json:
        say_json([asdict(meaning) for meaning in meanings])
    elif word is None:
        for kind, words in grouped(meanings, lambda meaning: meaning.kind).items():
            say(f"{kind}: {', '.join(dict.fromkeys(meaning.word for meaning in words))}")
    else:
        say("\n\n".join(f"{m.word} ({m.kind})\n{indent(m.text, '  ')}" for m in meanings))


def _list_options() -> Iterator[Meaning]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, summary in _help.SUMMARIES.items():
        yield Meaning(name, "command", f"{summary}.")
        command = importlib.import_module(f"nsabench.cli.{name}").command
        for leaf in [command, *getattr(command, "commands", {}).values()]:
            for option in leaf.params:
                for text in option.opts if isinstance(option, click.Option) else ():
                    key = text.lstrip("-"), option.help or ""
                    found.setdefault(key, []).append(leaf.name or "")
    for (option_name, does), commands in found.items():
        yield Meaning(option_name, "option", f"of {', '.join(dict.fromkeys(commands))}: {does}")
