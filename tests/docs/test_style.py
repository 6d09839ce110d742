"""Texts are plain. Rewrite a sentence that a test prints, or add its words to `ALLOWED`."""

import ast
import io
import re
import tokenize

import pytest

from tests.docs.test_prose import GENERATED, PAGES, ROOT, without_blocks

MOST_WORDS = 30
ALLOWED = ("does not say who measured",)
MESSAGES = ("echo", "say", "warn", "note")  # functions whose arguments a user reads
# A text ends at an empty line, at an item of a list, or at "name: what it means".
PARTS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>#]|\d+\.) )|\n(?=\s*\w[\w, ]*:)")
ITEM = re.compile(r"^\s*(?:[-*>]|#+|\d+\.) ")
START = r"(?:^|(?<=[.;:!] ))"


# The advice, and a pattern of the sentences that need it.
RULES = {
    "begin with the subject, not with a clause that replaces it": (
        rf"{START}(?:Who|Whoever|Whose|Whatever)\b(?!.*\?)|{START}What\b(?!.*\?).{{0,80}}?"
        r"\b(?:is|are|was|were|has|have|does|may|must|can|comes|costs|takes)\b"
    ),
    "begin with the subject, not with its genitive": (rf"{START}Of\s"),
    "say 'that' and 'none', not 'whom' and 'nobody'": (
        r"\b(?:whom?|whomever|whoever|(?:no|some|every|any)body)\b"
    ),
    "repeat the noun": (
        r"\b(?:that|those|the ones?) of (?:the|a|an)\b"
        rf"|{START}(?:The same|Those|The others?)\b[,.: ]"
    ),
    "begin with 'if', and name the actor": (
        rf"it is said so|{START}Where [^,.]{{3,80}}, (?:it|that|this|they|nothing|none|all)\b"
    ),
    "use the idiom: back to back, except, instead of, also": (
        r"\bone behind the other\b|\bbut for\b|\bin place of\b|\bas good as\b|, too\b|\ball else\b"
    ),
    "say 'is not a' or 'there is no'": (
        r"(?<!here )\b(?:is|are|was|were) (?:none|nothing|no(?! (?:longer|more|way|such|point)))\b"
    ),
    "say 'from', without 'on'": (r"\bfrom \S+(?: tokens| keys)? on\b(?! (?:a|an|the)\b)"),
    "say 'is stored in' or 'is in', not 'lies in'": (
        r"\b(?:lies?|lay|stands?|stood) (?:in|on|at|behind|beside|between|below|there)\b"
    ),
    "say what is true now": (
        r"\b[Ss]ince then\b|\ban? earlier version\b|\bused to (?:be|have|take)\b"
    ),
}


def find_hard(text):
    """Yield the hard sentences of a text, each with the advice."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`+[^`]*`+", "`x`", text))
    text = re.sub(r"\[[^\] ][^\]]*\]", "[x]", text)  # a shape, such as [B, T, HQ, D]
    for sentence in re.split(r" · |(?<=[.!?])\s+(?=[A-Z`*\"(])", " ".join(text.split())):
        if not any(words in sentence for words in ALLOWED):
            for advice, pattern in RULES.items():
                if re.search(pattern, sentence):
                    yield f"{advice}: {sentence}"
            if (count := len(re.findall(r"[\w'`-]+", sentence))) > MOST_WORDS:
                yield f"write at most {MOST_WORDS} words, not {count}: {sentence}"


def split_text(text):
    """Yield paragraphs, items of lists and cells of tables, without indented code."""
    text = re.sub(r"^ *(\|.*)$", lambda row: "\n\n".join(row[1].split("|")), text, flags=re.M)
    for part in PARTS.split(re.sub(r"(?<=\n\n)(?: {4}.*(?:\n|$))+", "", text)):
        yield ITEM.sub("", part)


def texts_of_page(page):
    if GENERATED not in page:
        yield from split_text(re.sub(r"<!--.*?-->", "", without_blocks(page), flags=re.S))


def texts_of_code(source):
    """Yield the docstrings, messages and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from split_text(ast.get_docstring(node) or "")
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if call is not node or name in MESSAGES:
                yield from (re.sub(r"^f?['\"]|\{.*?\}", "", ast.unparse(a)) for a in call.args)
    comments, last = [""], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_alone = token.line.lstrip().startswith("#")
            comments += [] if is_alone and token.start[0] == last + 1 else [""]
            comments[-1] += token.string.lstrip("#")
            last = token.start[0] if is_alone else -1
    yield from comments


@pytest.mark.parametrize("folder", ["", "nsabench", "kernels", "tests", "docs"])
def test_texts_are_plain(folder):
    paths = sorted((ROOT / folder).rglob("*.py")) if folder else PAGES
    read = texts_of_code if folder else texts_of_page
    hard = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in paths
        for text in read(path.read_text())
        for found in find_hard(text)
    ]
    assert hard == []
