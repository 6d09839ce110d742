"""Ops that do not ship with nsabench: how they are found and bound to their file, or refused."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsabench import ops, registry, sources
from nsabench.errors import UsageError
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import Inputs, Shape, Size, _external
from nsabench.running import planner, run
from nsabench.verdicts import tables
from tests import distributions
from tests.checking import a_case
from tests.runs import Made, make_plan, make_run

RMSNORM = Path(__file__).parents[1] / "rmsnorm.py"


@pytest.fixture(autouse=True)
def _none_is_kept():
    yield
    _external.from_files.clear()


def changed(folder, before, after):
    text = RMSNORM.read_text()
    assert before in text
    path = folder / "mine.py"
    path.write_text(text.replace(before, after))
    return path


def test_an_op_of_a_file_is_an_op_like_any_other():
    assert "rmsnorm" not in ops.names()
    op = ops.load_file(RMSNORM)
    assert ops.load_file(RMSNORM) is op is ops.get("rmsnorm")
    assert "rmsnorm" in ops.names()
    sizes = {"M": 4, "D": 8}
    assert ops.work(a_case("rmsnorm", sizes)).bytes_min == 2 * (2 * 32 + 8)
    backward = ops.work(a_case("rmsnorm", sizes, direction=Direction.BACKWARD))
    assert backward.bytes_min == 2 * (2 * 32 + 8) + 2 * (32 + 8)


def test_what_an_op_need_not_say(tmp_path):
    op = ops.load_file(RMSNORM)
    shape = op.shape_model.model_validate({"M": 4, "D": 8})
    inputs = op.draw(shape, DType.BFLOAT16, "normal", 1, "cpu")
    assert isinstance(inputs, Inputs)
    assert op.output_shape(inputs) == (4, 8)
    grad = op.draw_grad(inputs, 2)
    assert (tuple(grad.shape), grad.dtype) == ((4, 8), inputs.tensors["x"].dtype)
    assert op.terms(shape) == 8
    rows = ops.get("selection_rows")
    sizes = rows.shape_model.model_validate({"N": 1, "H": 1, "D": 16, "L": 32})
    assert rows.terms(sizes) == 16 + 32


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("OP = RMSNorm()", "OP = 1", "OP"),
        ("OP = RMSNorm()", "OP =", "SyntaxError"),
        ("OP = RMSNorm()", "OP = RMSNorm(1)", r"TypeError.*\(line \d+ of mine.py\)"),
        ("    def oracle", "    def other", "oracle"),
        ('"rmsnorm"', '"selection_rows"', "'selection_rows'"),
        ('name = "rmsnorm"', "name = property(lambda self: 1 / 0)", "ZeroDivisionError"),
        ('options = ("eps",)', 'options = "eps"', "options"),
        ('options = ("eps",)', "optional = (1,)", "optional"),
        ('("x", "weight")\n    options', "(1, 2)\n    options", "arguments"),
        ('("normal",)', "(1,)", "distributions"),
        ('("normal",)', "()", "distributions"),
        ("tuple(Direction)", '("sideways",)', "directions"),
        ('"rmsnorm"', '"RMS norm"', "'RMS norm'"),
        ('length_axis = "D"', 'length_axis = "L"', "'L'"),
        ("M: Size", "M: str", "'M'"),
        ('("x", "weight")\n    distributions', "()\n    distributions", "differentiable"),
        ("def gradients", "def grads", "gradients"),
    ],
)
def test_a_file_without_a_valid_op_is_refused(tmp_path, before, after, wrong):
    with pytest.raises(UsageError, match=wrong) as refused:
        ops.load_file(changed(tmp_path, before, after))
    assert "mine.py" in str(refused.value)
    assert refused.value.remedy and refused.value.exit_code == 2
    assert "rmsnorm" not in ops.names()


def test_a_file_that_is_missing_or_was_changed_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"none\.py") as refused:
        ops.load_file(tmp_path / "none.py")
    assert "--ops" in refused.value.remedy
    with pytest.raises(UsageError, match=r"rmsnorm\.py"):
        ops.load_file(RMSNORM, expected_sha256="0" * 64)


@pytest.mark.parametrize(
    ("before", "after", "method", "wrong"),
    [
        ("return shape.D", "return 1 / 0", "length", "ZeroDivisionError"),
        ("return shape.D", "return 'long'", "length", "str"),
        ("return shape.D", "return float('nan')", "length", "float"),
        ("return shape.D", "return -1", "length", "-1"),
        (
            "    def length",
            "    def terms(self, _):\n        return 2.5\n\n    def length",
            "terms",
            "float",
        ),
        ("shape.M * shape.D\n", "shape.N * shape.D\n", "work", "AttributeError"),
        ("return Work(", "return (", "work", "tuple"),
        ("* dtype.itemsize, 4", "* 0.5, 4", "work", "ValueError"),
        ("4 * elements)", "-elements)", "work", "ValueError"),
        ("return shape.M * shape.D + shape.D", "return None", "backward_work", "TypeError"),
    ],
)
def test_an_op_is_asked_before_anything_is_measured(tmp_path, before, after, method, wrong):
    path = changed(tmp_path, before, after)
    matrix = tmp_path / "norm.yaml"
    axes = "{M: 4, D: 8, dtype: float16, direction: [forward, backward]}"
    matrix.write_text(f"op: rmsnorm\naxes: {axes}\n")
    with pytest.raises(UsageError, match=f"{method} of the op 'rmsnorm'.*{wrong}") as refused:
        planner.make_plan([str(matrix)], "cpu", None, ops_file=path)
    assert refused.value.exit_code == 2 and "import" not in refused.value.remedy


@pytest.mark.parametrize("size", ["shape", "status", "length", "n", "Status"])
def test_no_size_is_called_as_what_a_record_holds(size):
    class Sizes(Shape):
        __annotations__ = {size: Size}

    op = SimpleNamespace(name="norm", shape_model=Sizes)
    with pytest.raises(UsageError, match=f"'{size}'"):
        tables.refuse_sizes(op)


def test_a_run_is_read_with_the_op_that_it_was_made_with(tmp_path):
    digest = sources.sha256(RMSNORM.read_bytes())
    plan = Plan.model_construct(ops=str(RMSNORM), ops_sha256=digest)
    with pytest.raises(UsageError, match=digest[:12]) as refused:
        ops.refuse_other(plan)
    assert "--ops rmsnorm.py" in refused.value.remedy
    ops.load_file(changed(tmp_path, "4 * elements", "5 * elements"))
    with pytest.raises(UsageError, match=digest[:12]):
        ops.refuse_other(plan)
    ops.load_file(RMSNORM)
    ops.refuse_other(plan)
    ops.refuse_other(Plan.model_construct(ops="", ops_sha256=""))


def with_package(folder, points, name="some-ops"):
    """Write a package with these entry points for ops. Return code that puts it on the path."""
    package = folder / name / name.replace("-", "_")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "norm.py").write_text(RMSNORM.read_text())
    torch = RMSNORM.read_text().replace("from nsabench.model", "import torch\nfrom nsabench.model")
    (package / "eager.py").write_text(torch.replace('"rmsnorm"', '"eager"'))
    distributions.describe(package.parent, name, f"[nsabench.ops]\n{points}")
    return (
        f"import sys; sys.path.insert(0, {str(folder / name)!r})\n"
        "from pathlib import Path\nfrom nsabench import ops, sources\n"
        "from nsabench.verdicts import tables\nfrom nsabench.errors import UsageError\n"
        "def refused(call, *given):\n"
        "    try:\n        call(*given)\n"
        "    except UsageError as error:\n        print(error)\n"
        "    else:\n        raise AssertionError(given)\n"
    )


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_op_of_an_entry_point_is_imported_when_it_is_named(tmp_path):
    points = "rmsnorm = some_ops.norm\nother = some_ops.norm\nbroken = some_ops.none\n"
    said = printed(
        with_package(tmp_path, f"{points}eager = some_ops.eager\n")
        + "assert {'rmsnorm', 'other', 'broken'} <= set(ops.names())\n"
        "assert sources.versions()['some-ops'] == '1.0'\n"
        "assert len(sources.digests()['some-ops']) == 64\n"
        "assert 'some_ops' not in sys.modules\n"
        "assert ops.get('rmsnorm').length_axis == 'D'\n"
        "assert 'torch' not in sys.modules\n"
        "for name in ('other', 'broken', 'eager'):\n    refused(ops.get, name)\n"
    )
    assert "entry point 'other' of some-ops holds the op 'rmsnorm'" in said
    assert "entry point 'broken' of some-ops cannot be imported" in said
    assert "entry point 'eager' of some-ops imports torch" in said


def test_an_entry_point_takes_no_name_of_another_op(tmp_path):
    both = "rmsnorm = {0}.norm\ntwice = {0}.norm\n"
    said = printed(
        with_package(tmp_path, both.format("some_ops"))
        + with_package(tmp_path, "twice = more_ops.norm\n", "more-ops")
        + f"refused(ops.load_file, Path({str(RMSNORM)!r}))\n"
        "refused(ops.get, 'twice')\n"
    )
    assert "holds an op 'rmsnorm', and some-ops has one" in said
    assert "more-ops and some-ops each have an op 'twice'" in said


def namesakes(folder):
    """Write a file of kernels and a file of an op, both named `mine.py`. Return their paths."""
    for part, text in (("a", "# kernels\n"), ("b", RMSNORM.read_text())):
        (folder / part).mkdir()
        (folder / part / "mine.py").write_text(text)
    return folder / "a" / "mine.py", folder / "b" / "mine.py"


def test_two_files_of_one_name_are_two_sources(tmp_path):
    files = namesakes(tmp_path)
    present = sources.digests(*files)
    assert [sources.digest_of(f, present) for f in files] == [
        sources.sha256(f.read_bytes()) for f in files
    ]
    files[1].write_text("# changed\n")
    with pytest.raises(UsageError, match=r"b/mine\.py is not what it was"):
        sources.refuse_changed(sources.digests(*files), present, *files)
    with pytest.raises(UsageError, match=r"b/mine\.py is not what it was"):
        sources.digest_of(files[1], present)


@pytest.mark.parametrize("digest", ["", "abc", "0" * 64])
def test_a_plan_that_does_not_say_what_its_op_was_is_none(tmp_path, digest):
    plan = make_plan(Made()).model_copy(update={"ops": "/tmp/evil.py", "ops_sha256": digest})
    plan.write(tmp_path / "plan.json")
    with pytest.raises(UsageError, match=r"evil\.py") as refused:
        Plan.read(tmp_path / "plan.json")
    assert refused.value.exit_code == 2
    with pytest.raises(UsageError, match=r"rmsnorm\.py"):
        ops.load_file(RMSNORM, expected_sha256=digest)
    assert "rmsnorm" not in ops.names()


def test_a_finished_run_executes_no_file(tmp_path):
    marker = tmp_path / "executed"
    path = changed(tmp_path, "OP = ", f"open({str(marker)!r}, 'w')\nOP = ")
    digest = sources.sha256(path.read_bytes())
    run_folder = make_run(tmp_path / "run")
    plan = Plan.read(run_folder / "plan.json")
    bound = {"ops": str(path), "ops_sha256": digest}
    bound["sources"] = registry.sources(None, path) | plan.sources
    plan.model_copy(update=bound).write(run_folder / "plan.json")
    with pytest.raises(UsageError, match="run") as refused:
        run.read(run_folder)
    assert "nsabench report" in refused.value.remedy and "--ops mine.py" in refused.value.remedy
    assert not marker.exists()
