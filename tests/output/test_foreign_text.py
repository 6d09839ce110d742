"""Foreign text stays text: every output renders a run whose text fields all hold markup and control
characters."""

import base64
import gzip
import json
import re

import pytest
from pydantic import ValidationError

from nsabench.machine.environment.model import Environment
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Status
from nsabench.output import compare, report, terminal
from nsabench.output.compare import document
from nsabench.output.report import page
from nsabench.output.report.markdown import render as markdown_of
from nsabench.output.terminal.progress import _Console
from nsabench.running.folder import RunFolder
from nsabench.running.run import Finished
from nsabench.text import code, markdown, shown
from nsabench.verdicts import threshold, thresholds_yaml
from nsabench.verdicts.results import assemble
from nsabench.verdicts.tables import write_tables
from tests.runs import Made, make_run

CORPUS = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J\x00\x7f",
    "a\u202eright-to-left\u2066\u200f\u061c b\u200bc\ufeff\U000e0041",
    "mine.py:100:x [bold]b[/bold] [/usr/lib/x.so] :smiley:",
    "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} </style>",
    "` ``` | *b* _i_ ~~s~~ $m$ # h [l](http://evil) http://evil www.evil @everyone #1",
    "=HYPERLINK(1)",
    "one\rtwo\ntwo\tthree\u2028four\x85five",
)
ALL = " ".join(CORPUS)
# Characters that are invisible or look like others, except line ends and tabs, which outputs write.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0d\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)


def texts_in(data):
    """Yield the container and the key of each text in JSON data."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, str):
            yield data, key
        elif isinstance(value, dict | list):
            yield from texts_in(value)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    def fill(folder, seed):
        made = Made(
            seed=seed,
            implementations=(ALL,),
            gpu=ALL,
            torch=ALL,
            triton=ALL,
            status=lambda length: Status.CRASHED if length == 64 else Status.OK,
        )
        make_run(folder, made)
        environment = json.loads((folder / "environment.json").read_text())
        changed = 0
        for holder, key in list(texts_in(environment)):
            before, holder[key] = holder[key], ALL
            try:
                Environment.model_validate(environment)
                changed += 1
            except ValidationError:  # one of a fixed set of words, or a time
                holder[key] = before
        assert changed > 20
        (folder / "environment.json").write_text(json.dumps(environment))
        text = (folder / "log.jsonl").read_text()
        lines = [json.loads(line) for line in text.removesuffix("\n").split("\n")]
        for entry in (line["entry"] for line in lines):
            if entry["kind"] == "session":
                described = entry["described"]
                texts = dict.fromkeys(("torch", "torch_cuda", "triton", "numpy"), ALL)
                described["software"] |= texts
                described["device"]["name"] = ALL
                entry["distributions"] = {ALL: ALL}
            elif entry["kind"] == "observed":
                observation = entry["observation"]
                for name in ("diagnosis", "config", "worst_row_at"):
                    observation[name] = ALL
                observation["notes"] = list(CORPUS)
                observation["reason"] = ALL if observation["reason"] else ""
            elif entry["kind"] == "ended":
                entry["conditions"]["clock_event_reasons"] = list(CORPUS)
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "log.jsonl").write_text(content)
        plan = Plan.read(folder / "plan.json")
        for log in (folder / "logs").iterdir():
            log.write_text(ALL)
        results = assemble(plan.run_id, RunFolder(folder).parts())
        write_tables(results, plan.run_id, folder)
        decisions = threshold.decide_run(*threshold.read_run(folder))
        thresholds_yaml.write(decisions, folder / "thresholds.yaml")
        return folder

    parent = tmp_path_factory.mktemp("hostile")
    fill(parent / "other", 1)
    return fill(parent / "run", 0)


def finished(folder):
    run = RunFolder(folder)
    [part] = run.parts()
    return Finished(run, part.plan, assemble(part.plan.run_id, [part]), 1.0, 0.5)


def printed(show):
    console = terminal.console()
    assert isinstance(console, _Console)
    with console.capture() as capture:
        show(console)
    return capture.get()


def comparison(folder):
    return compare.compare(compare.read([folder, folder.parent / "other"]))


def on_terminal(folder):
    return printed(lambda console: terminal.print_summary(finished(folder), console))


def compared_on_terminal(folder):
    return printed(lambda console: console.print(document.render(comparison(folder))))


def as_markdown(folder):
    return "\n".join(
        (markdown_of(report.Facts.read(folder)), document.to_markdown(comparison(folder)))
    )


def pages(folder):
    return page.render(report.Facts.read(folder))


@pytest.mark.parametrize("render", [on_terminal, compared_on_terminal, as_markdown])
def test_nothing_is_obeyed(hostile, render):
    text = render(hostile)
    found = INVISIBLE.search(text)
    assert found is None, repr(text[max(found.start() - 60, 0) : found.end() + 20])
    assert "\\x1b[31mred" in text.replace("\n", "").replace(" ", "") or "\\\\x1b\\[31mred" in text
    assert "😃" not in text and "❌" not in text, "rich makes pictures of :smiley: and :x:"


def test_a_page_shows_text_only(hostile):
    pytest.importorskip("vl_convert")
    html = pages(hostile)
    # The page's own scripts may hold any character.
    ours = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    found = INVISIBLE.search(ours)
    assert found is None, repr(ours[max(found.start() - 60, 0) : found.end() + 20])
    assert "<img" not in ours and "alert(1)</script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in ours and "\\x1b[31mred" in ours
    for packed in re.findall(r'id="data">(.*?)</script>', html, flags=re.DOTALL):
        data = gzip.decompress(base64.b64decode(packed)).decode()
        texts = list(filter(None, json.loads(data)["strings"]))
        assert any("\\x1b" in text for text in texts)
        assert not any(INVISIBLE.search(text) for text in texts)


def test_in_markdown_nothing_is_live(hostile):
    text = as_markdown(hostile)
    unfenced = re.sub(r"(?ms)^(`{3,}).*?^\1", "", text)
    unescaped = re.sub(r"\\[^\w\s]", "", unfenced)  # escaped characters are text
    plain = re.sub(r"`[^`\n]*`", "", unescaped)
    for live in ("<", "http://", "www.", "@everyone", ":smiley:", ":100:", "*b*", "~~", "](", "`"):
        assert live not in plain, (live, plain[max(plain.find(live) - 80, 0) :][:160])


@pytest.mark.parametrize("text", CORPUS)
def test_each_kind(text):
    for render in (shown, markdown, code):
        assert not INVISIBLE.search(render(text)), render
    assert shown(shown(text)) == shown(text), "what is shown is shown as it is"
    assert code(text).count("`") == 2
    assert "\n" not in markdown(text) + code(text) + shown(text)


def test_words_that_are_only_words():
    # CommonMark makes no emphasis within a word.
    assert markdown("_a_ b_") == r"\_a\_ b\_"
    for word in ("日本語", "naïve é", "✅ ok", "C:\\path", "torch 2.11.0+cu130 · 1.2×"):
        assert shown(word) == word
    assert markdown("a_b (selection_rows)") == "a_b (selection_rows)"
