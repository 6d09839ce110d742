"""The decisions of a run are the same wherever they are shown."""

import io

import yaml
from click.testing import CliRunner
from rich.console import Console

from nsabench.cli.threshold import command
from nsabench.model.vocabulary import Role, Status, ThresholdAnswer, Verdict
from nsabench.output import report, terminal
from nsabench.output.report import Facts
from nsabench.running.folder import RunFolder
from nsabench.running.run import Finished
from nsabench.verdicts import threshold, thresholds_yaml
from tests.runs import Made, make_run, with_comparison


def shown(folder):
    facts = Facts.read(folder)
    console = Console(file=io.StringIO(), width=1000)
    finished = Finished(RunFolder(folder), facts.plan, facts.results, 1.0, 1.0)
    terminal.print_summary(finished, console)
    out = folder.parent / "out"
    out.mkdir(exist_ok=True)
    done = CliRunner().invoke(command, [str(folder)])
    return {
        "page": report.write_html(facts, out).read_text().replace("&#39;", "'"),
        "text": report.write_markdown(facts, out).read_text().replace("\\_", "_"),
        "panel": " ".join(console.file.getvalue().split()),
        "threshold": done.output,
    }


def test_no_not_decided_and_not_tested_are_three_answers(tmp_path):
    made = {
        ThresholdAnswer.FROM: Made(),
        ThresholdAnswer.NO: Made(ratio=lambda _: 0.5),
        # Two lengths of one shape are too few to decide on.
        ThresholdAnswer.NOT_DECIDED: Made(shapes=((256, 8, 128),)),
        ThresholdAnswer.NOT_TESTED: Made(status=lambda _: Status.UNSUPPORTED),
    }
    for answer, one in made.items():
        folder = make_run(tmp_path / answer, one)
        [decision] = threshold.decide_run(*threshold.read_run(folder))
        assert decision.answer is answer
        assert (
            yaml.safe_load(thresholds_yaml.as_yaml([decision]))["decisions"][0]["answer"] == answer
        )
        thresholds_yaml.write([decision], folder / "thresholds.yaml")
        for where, text in shown(folder).items():
            assert decision.sentence in text, (answer, where)
    sentences = {"not decided", "not tested", "not worth using at any length"}
    assert len(sentences) == 3
    assert "as the test wants it" in decision.reasons[0]


def test_an_open_case_at_the_top_is_no_no(tmp_path):
    """A candidate that is not proven slower than the baseline is not rejected."""
    records, plan = threshold.read_run(make_run(tmp_path / "run"))
    tops = [r for r in records if r.role is Role.CANDIDATE and r.length == 512]
    for slower, answer in ((0, ThresholdAnswer.NOT_DECIDED), (1, ThresholdAnswer.NO)):
        cells = [
            *(with_comparison(r, verdict=Verdict.INCONCLUSIVE, lo=0.5) for r in tops[slower:]),
            *(with_comparison(r, verdict=Verdict.SLOWER, lo=0.9) for r in tops[:slower]),
        ]
        others = [r for r in records if r not in tops]
        [decision] = threshold.decide_run([*others, *cells], plan)
        assert decision.answer is answer


def test_a_page_says_first_how_much_faster_and_then_from_where(tmp_path):
    folder = make_run(tmp_path / "run", Made(ratio=lambda n: 1.5 if n < 256 else 6.0))
    answer = report.write_html(Facts.read(folder), tmp_path).read_text().split('class="answer"')[1]
    assert answer.index("1.50x to 6.02x") < answer.index("16 faster")
    assert answer.index("16 faster") < answer.index("worth using from L = 64")
