"""Known mistakes that no mutant makes, made on purpose in the case's own dtype, are named."""

import itertools
import math
import time

import pytest
import torch

from nsabench import ops
from nsabench.checker.diagnosis import diagnose, search
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs

OP = ops.get("selection_rows")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What is found must not depend on how busy the machine is."""
    monkeypatch.setattr(search, "TIME_LIMIT_S", 60.0)


def draw(N=8, H=4, D=64, L=256, dtype=DType.FLOAT16, seed=1):
    shape = OP.shape_model.model_validate({"N": N, "H": H, "D": D, "L": L})
    return OP.draw(shape, dtype, "dense", seed, "cpu")


def attend(inputs: Inputs, keys=slice(None), scale=None, k=None, v=None):
    q, k, v = (
        inputs.tensors["q"],
        *(inputs.tensors[n] if t is None else t for n, t in (("k", k), ("v", v))),
    )
    k, v = k[:, keys], v[:, keys]
    scores = q.double() @ k.double().mT * (scale or inputs.options["sm_scale"])
    return (torch.softmax(scores, -1) @ v.double()).to(q.dtype)


MISTAKES = {
    "attends to the first 201 of 256 keys": lambda i: attend(i, slice(0, 201)),
    "attends to key 0 only": lambda i: attend(i, slice(0, 1)),
    "attends to the last 64 of 256 keys": lambda i: attend(i, slice(192, None)),
    "softmax scale 1/D = 1/64": lambda i: attend(i, scale=1 / 64),
    "is zero everywhere": lambda i: torch.zeros_like(attend(i)),
    "is the plain mean of V": lambda i: i.tensors["v"].mean(1, keepdim=True).expand(-1, 4, -1),
    "neither subtracts the maximum nor divides": (
        lambda i: (torch.exp(scores(i).double()) @ i.tensors["v"].double()).half()
    ),
    "the output and the weights summed so far when the maximum rises, in tiles of 16": (
        lambda i: not_rescaled(i, 16)
    ),
    "takes no softmax": lambda i: scores(i) @ i.tensors["v"],
    "off by a constant 0.005": lambda i: attend(i) + 0.005,
    "is 1.1 times the right one": lambda i: attend(i) * 1.1,
}


def scores(inputs):
    return inputs.tensors["q"] @ inputs.tensors["k"].mT * inputs.options["sm_scale"]


def not_rescaled(inputs, tile):
    """Softmax a tile at a time, what was summed so far under the maximum of its time."""
    s, v = scores(inputs).double(), inputs.tensors["v"].double()
    top = torch.full_like(s[..., :1], -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(s[..., :1] * v[:, :1])
    for part, values in zip(s.split(tile, -1), v.split(tile, 1), strict=True):
        top = torch.maximum(top, part.amax(-1, keepdim=True))
        p = torch.exp(part - top)
        total, out = total + p.sum(-1, keepdim=True), out + p @ values
    return (out / total).half()


@pytest.mark.parametrize("expected", MISTAKES)
def test_it_names_the_mistake(expected):
    inputs = draw()
    text = diagnose(OP, inputs, MISTAKES[expected](inputs))
    assert expected in text
    assert "against that hypothesis" in text


def test_it_names_keys_that_two_tiles_share():
    inputs = draw(L=77)
    twice = (torch.cat([x, x[:, 13:64]], 1) for x in list(inputs.tensors.values())[1:])
    output = attend(inputs, **dict(zip("kv", twice, strict=True)))
    assert "counts keys 13 to 63 twice: two tiles of 64" in diagnose(OP, inputs, output)


def test_the_sentence_holds_both_errors():
    inputs = draw(N=16, H=8, L=1024)
    text = diagnose(OP, inputs, attend(inputs, slice(0, 64)))
    hypothesis, op = (float(x.split()[0]) for x in text.split("(MAE ")[1].split(", "))
    assert hypothesis < 1e-4
    assert 0.14 < op < 0.16


def test_what_nothing_explains_is_at_least_located():
    inputs = draw()
    output = attend(inputs)
    output[6:, 1] += torch.randn(64, generator=torch.Generator().manual_seed(0))
    text = diagnose(OP, inputs, output)
    assert text.startswith("no hypothesis explains it")
    assert "axis 0 (of 8): 6 to 7, axis 1 (of 4): index 1" in text


def test_a_mistake_in_a_few_rows_of_many_is_found():
    inputs = draw(N=300, D=32, L=512)
    output = attend(inputs)
    output[101:104] = attend(inputs, slice(0, 448))[101:104]
    text = diagnose(OP, inputs, output)
    assert text.startswith("attends to the first 448 of 512 keys in axis 0 (of 300): 101 to 103")


def test_nan_is_located():
    inputs = draw()
    output = attend(inputs)
    output[5:] = math.nan
    text = diagnose(OP, inputs, output)
    assert "768 of 2048 elements are NaN or infinite: axis 0 (of 8): 5 to 7; NaN is also" in text
    output[5:] = math.inf
    assert diagnose(OP, inputs, output).endswith("axis 0 (of 8): 5 to 7")


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_it_is_quick_and_thins_large_cases_out(dtype, monkeypatch):
    monkeypatch.undo()
    inputs = draw(N=256, H=8, D=128, L=512, dtype=dtype)
    wrong = attend(inputs, slice(0, 64))
    start = time.process_time()  # of all threads; the machine may be busy
    text = diagnose(OP, inputs, wrong)
    assert time.process_time() - start < 3
    assert "first 64 of 512" in text


def test_the_smallest_case():
    inputs = draw(N=1, H=1, D=1, L=1)
    assert diagnose(OP, inputs, torch.zeros(1, 1, 1, dtype=torch.float16))


PACKED = {
    "selection_varlen": {"N": 30, "H": 4, "D": 32, "L": 90},
    "selection_ranges": {"B": 2, "S": 6, "G": 2, "H": 4, "D": 32, "n_spans": 4}
    | {"S_kv": 300, "L": 150},
}


def draw_packed(name, distribution):
    op = ops.get(name)
    shape = op.shape_model.model_validate(PACKED[name])
    return op, op.draw(shape, DType.FLOAT16, distribution, 1, "cpu")


def with_keys(op, inputs, change):
    """What comes out if each row attends to `change` of the keys it selects, in order."""
    t = inputs.tensors
    if op.name == "selection_varlen":
        starts = t["cu_seqlens"].tolist()
        rows = {(i,): range(starts[i], starts[i + 1]) for i in range(len(starts) - 1)}
        k, v = (lambda i, indices: t["k"][indices]), (lambda i, indices: t["v"][indices])
    else:
        keys = t["k"].shape[2]
        rows = {}
        for i in itertools.product(*map(range, t["q"].shape[:3])):
            spans = t["ranges"][i].tolist()
            members = [key for a, b in spans for key in range(max(a, 0), min(b, keys))]
            rows[i] = sorted(members)
        k, v = (
            (lambda i, indices: t["k"][i[0], i[2], indices]),
            (lambda i, indices: t["v"][i[0], i[2], indices]),
        )
    out = torch.zeros(*t["q"].shape[:-1], t["v"].shape[-1])
    for i, selected in rows.items():
        indices = change(list(selected))
        if indices:
            scores = t["q"][i].double() @ k(i, indices).double().mT * inputs.options["sm_scale"]
            out[i] = (torch.softmax(scores, -1) @ v(i, indices).double()).float()
    return out.half()


def once(keys):
    return sorted(set(keys))


def in_tiles(keys, tile=32):
    """A kernel that forgets what fills no tile, once it has more than one."""
    return keys[: max(len(keys) // tile * tile, min(len(keys), tile))]


# What is said of rows of different lengths, and of rows that all select 150 keys.
RAGGED = [
    ("first 40 keys of each row", "first 40 of 150 keys", lambda indices: indices[:40]),
    ("attends to key 0 only", "attends to key 0 only", lambda indices: indices[:1]),
    ("last 33 keys of each row", "last 33 of 150 keys", lambda indices: indices[-33:]),
    ("leaves out the first key of each row", "last 149 of 150 keys", lambda indices: indices[1:]),
    ("leaves out the last key of each row", "first 149 of 150 keys", lambda indices: indices[:-1]),
    ("fill no tile of 32", "first 128 of 150 keys", in_tiles),
]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("ragged", "even", "change"), RAGGED)
def test_mistakes_in_packed_rows_and_spans_are_named(name, ragged, even, change):
    op, inputs = draw_packed(name, "empty_rows")
    right = with_keys(op, inputs, once)
    torch.testing.assert_close(right.double(), op.oracle(inputs), atol=1e-3, rtol=1e-2)
    text = diagnose(op, inputs, with_keys(op, inputs, lambda indices: change(once(indices))))
    assert (ragged if name == "selection_varlen" else even) in text
    assert "against that hypothesis" in text


def test_overlaps_counted_twice_are_named():
    op, inputs = draw_packed("selection_ranges", "overlapping")
    text = diagnose(op, inputs, with_keys(op, inputs, lambda indices: indices))
    assert text.startswith("counts keys as often as spans hold them")


@pytest.mark.parametrize(("end", "shift"), [("first", (1, 0)), ("last", (0, -1))])
def test_spans_that_are_one_short_are_named(end, shift):
    op, inputs = draw_packed("selection_ranges", "disjoint")
    short = inputs.tensors["ranges"] + torch.tensor(shift, dtype=torch.int32)
    output = op.oracle(Inputs({**inputs.tensors, "ranges": short}, inputs.options)).half()
    assert diagnose(op, inputs, output).startswith(f"leaves out the {end} key of each span")


def test_wrong_queries_of_many_are_found_and_said():
    op, inputs = draw_packed("selection_ranges", "disjoint")
    output = op.oracle(inputs).half()
    output[1, 2:4, 0] = with_keys(op, inputs, lambda indices: indices[:64])[1, 2:4, 0]
    text = diagnose(op, inputs, output)
    assert "attends to the first 64 of 150 keys in axis 0 (of 2): index 1, axis 1 (of 6)" in text


def test_an_op_from_outside_may_be_called_like_a_module_of_diagnoses():
    op = type("Outside", (type(OP),), {"name": "keys"})()
    inputs = draw()
    assert diagnose(op, inputs, attend(inputs) * 1.1).startswith("is 1.1 times the right one")


def test_where_a_mistake_shows_is_not_where_it_is_largest():
    """All heads lose a key; what it weighs differs between them, and is no place."""
    inputs = draw()
    assert " in axis" not in diagnose(OP, inputs, attend(inputs, slice(0, 255)))


def test_nothing_selected_has_nothing_to_be_mistaken_in():
    for name in PACKED:
        op, inputs = draw_packed(name, "all_empty")
        assert diagnose(op, inputs, op.oracle(inputs).half() + 1)


def test_a_factor_near_one_is_said_in_digits_that_tell_it_from_one():
    inputs = draw()
    right = OP.oracle(inputs)
    assert "is 1.00002" in diagnose(OP, inputs, (right * (1 + 2e-5)).float())
