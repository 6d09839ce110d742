"""The ops: oracles against slower definitions, and what draws promise."""

import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import Inputs

CACHE = {"B": 2, "S": 75, "HQ": 4, "H": 2, "D": 16, "Dv": 8}
SIZES = {
    "selection_rows": {"N": 6, "H": 3, "D": 16, "Dv": 8, "L": 10},
    "selection_varlen": {"N": 9, "H": 3, "D": 16, "Dv": 8, "L": 10},
    "selection_ranges": {"B": 2, "S": 5, "G": 2, "H": 3, "D": 16, "Dv": 8}
    | {"S_kv": 40, "n_spans": 3, "L": 17},
    "selection_blocks": {"B": 2, "T": 50, "HQ": 4, "H": 2, "D": 16, "Dv": 8}
    | {"S": 4, "block_size": 8},
    "sliding_window": {"B": 3, "T": 13, "HQ": 4, "H": 2, "D": 16, "Dv": 8, "window": 5},
    "compressed": {"B": 3, "T": 13, "HQ": 4, "H": 2, "D": 16, "Dv": 8, "block": 4, "stride": 2},
    "decode_step": {**CACHE, "block": 4, "stride": 2, "block_size": 8, "n_selected": 5}
    | {"window": 11},
    "decode_compressed": {**CACHE, "block": 4, "stride": 2},
    "decode_selected": {**CACHE, "block_size": 8, "n_selected": 5},
    "decode_window": {**CACHE, "window": 11},
    "decode_dense": CACHE,
    "causal_attention": {"B": 3, "T": 13, "HQ": 4, "H": 2, "D": 16, "Dv": 8},
    "nsa_attention": {"B": 3, "T": 40, "HQ": 4, "H": 2, "D": 16, "Dv": 8, "block": 4, "stride": 2}
    | {"block_size": 8, "n_selected": 3, "window": 5},
    "nsa_without_window": {"B": 3, "T": 40, "HQ": 4, "H": 2, "D": 16, "Dv": 8}
    | {"block_size": 8, "n_selected": 3},
}
# Sizes that a distribution requires.
CHANGES = {"packed": {"B": 1}, "dense": {"S": 9}}
# A recording has fixed sizes, so test_recorded.py draws it.
EVERY = [(name, d) for name in SIZES for d in ops.get(name).distributions if d != "recorded"]
# `decode_step`, and ops whose queries attend to one set of keys. NSA ops have their own files.
OF_KEYS = [(name, d) for name, d in EVERY if not name.startswith("nsa_")]


def drawn(name, distribution, seed=3):
    op = ops.get(name)
    changes = CHANGES.get(distribution, {}) if name == "selection_blocks" else {}
    shape = op.shape_model.model_validate(SIZES[name] | changes)
    return op, shape, op.draw(shape, DType.FLOAT16, distribution, seed, "cpu")


def attend(q, k, v, scale):
    """Attend with one query of one head by the definition, without a library's softmax."""
    if not len(k):
        return torch.zeros(v.shape[1], dtype=torch.float64)
    logits = [float(torch.dot(q.double(), key.double())) * scale for key in k]
    weights = np.exp(np.array(logits) - max(logits))
    return torch.from_numpy(weights / weights.sum()) @ v.double()


def place_of(name, inputs, index):
    """Return the index into k and v of the keys that the query at this index of q sees."""
    t = inputs.tensors
    if name == "selection_rows":
        return (index[0],)
    if name == "selection_varlen":
        return (list(range(*t["cu_seqlens"][index[0] : index[0] + 2].tolist())),)
    if name == "selection_ranges":
        b, s, g, _ = index
        spans = t["ranges"][b, s, g].tolist()
        return b, g, sorted(set().union(*(range(*within(span, t["k"].shape[2])) for span in spans)))
    if name.startswith("decode"):
        b, h = index[0], index[1] // (t["q"].shape[1] // t["k"].shape[1])
        keys = list(range(t["k"].shape[2]))
        if name == "decode_window":
            keys = keys[-int(inputs.options["window"]) :]
        elif name == "decode_selected":
            keys = [i for span in t["ranges"][b, h].tolist() for i in range(*span)]
        return b, h, keys
    b, _, head = index
    return b, keys_of_a_sequence(name, inputs, index), head // (t["q"].shape[2] // t["k"].shape[2])


def within(span, keys):
    return max(span[0], 0), min(span[1], keys)


def keys_of_a_sequence(name, inputs, index):
    t, options = inputs.tensors, inputs.options
    b, at, head = index
    starts = t.get("cu_seqlens", torch.tensor([0, t["q"].shape[1]])).tolist()
    sequence = max(i for i, start in enumerate(starts) if start <= at)
    begin = starts[sequence]
    if name == "compressed":
        block, stride = int(options["block"]), int(options["stride"])
        first = t["cu_keys"][sequence].item() if "cu_keys" in t else 0
        # A key counts once the last of its tokens has been seen.
        return [first + i for i in range(at) if i * stride + block - 1 <= at - begin]
    if name != "selection_blocks":
        return list(range(max(begin, at - int(options.get("window", at + 1)) + 1), at + 1))
    block, kv_head = int(options["block_size"]), head // (t["q"].shape[2] // t["k"].shape[2])
    blocks = set(t["block_indices"][b, at, kv_head].tolist())
    return [i for i in range(begin, at + 1) if (i - begin) // block in blocks]


def keys_of(name, inputs, index):
    place = place_of(name, inputs, index)
    return inputs.tensors["k"][place], inputs.tensors["v"][place]


def chosen_blocks(inputs, b, h):
    """Return the blocks that a decode step selects: first, last two, and those of large keys."""
    k_cmp, sizes = inputs.tensors["k_cmp"][b, h].double(), inputs.options["sizes"]
    blocks = -(-inputs.tensors["k"].shape[2] // sizes.block_size)
    loud = (k_cmp.norm(dim=-1) > 10).nonzero().flatten().tolist()
    return {key * sizes.stride // sizes.block_size for key in loud} | {0, blocks - 2, blocks - 1}


def decode_by_branches(inputs, index):
    """Return the gated sum of the branches, each computed by the definition."""
    t, sizes = inputs.tensors, inputs.options["sizes"]
    b, h = index[0], index[1] // (t["q"].shape[1] // t["k"].shape[1])
    tokens, chosen = t["k"].shape[2], chosen_blocks(inputs, b, h)
    assert len(chosen) == sizes.n_selected
    selected = [i for i in range(tokens) if i // sizes.block_size in chosen]
    near = list(range(max(tokens - sizes.window, 0), tokens))
    branches = (
        (t["k_cmp"][b, h], t["v_cmp"][b, h]),
        *((t["k"][b, h, keys], t["v"][b, h, keys]) for keys in (selected, near)),
    )
    return sum(
        gate * attend(t["q"][index], k, v, inputs.options["sm_scale"])
        for gate, (k, v) in zip(t["gates"][index].double(), branches, strict=True)
    )


@pytest.mark.parametrize(("name", "distribution"), OF_KEYS)
def test_the_oracle_is_the_definition(name, distribution):
    op, _, inputs = drawn(name, distribution)
    out = op.oracle(inputs)
    q = inputs.tensors["q"]
    assert out.dtype == torch.float64
    assert torch.isfinite(out).all()
    for index in np.ndindex(*q.shape[:-1]):
        if name == "decode_step":
            expected = decode_by_branches(inputs, index)
        else:
            k, v = keys_of(name, inputs, index)
            expected = attend(q[index], k, v, inputs.options["sm_scale"])
        torch.testing.assert_close(out[index], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "distribution"), EVERY)
def test_the_work_and_the_shapes_do_not_depend_on_the_seed(name, distribution):
    """Sets of inputs are exchanged in place while a case is timed, so all need the same work."""
    op, shape, first = drawn(name, distribution, 3)
    _, _, second = drawn(name, distribution, 4)
    assert [t.shape for t in first.tensors.values()] == [t.shape for t in second.tensors.values()]
    assert not torch.equal(first.tensors["q"], second.tensors["q"]) or distribution == "all_empty"
    work = [op.work(shape, DType.FLOAT16, distribution, seed) for seed in (3, 4)]
    assert work[0].flops == work[1].flops
    # How many queries select the same key is left to chance.
    assert work[0].bytes_min == pytest.approx(work[1].bytes_min, rel=0.1)


READ_WHOLE = ("selection_rows", "selection_varlen", "sliding_window", "compressed")
READ_WHOLE += ("causal_attention", "decode_dense", "decode_compressed")


@pytest.mark.parametrize(
    ("name", "distribution"), [(n, d) for n, d in OF_KEYS if n != "decode_step"]
)
def test_work_counts_each_key_seen_and_each_touched_one_once(name, distribution):
    op, shape, inputs = drawn(name, distribution)
    t, indices = inputs.tensors, list(np.ndindex(*inputs.tensors["q"].shape[:-1]))
    work = op.work(shape, DType.FLOAT16, distribution, 3)
    seen = sum(len(keys_of(name, inputs, index)[0]) for index in indices)
    assert work.flops == 2 * seen * (16 + 8)
    if name in READ_WHOLE:
        moved = sum(x.numel() * x.element_size() for x in t.values())
        assert work.bytes_min == moved + 2 * 8 * len(indices)
    if name == "selection_blocks":
        places = [place_of(name, inputs, index) for index in indices]
        touched = {(b, key, head) for b, keys, head in places for key in keys}
        index_bytes = sum(t[n].numel() * 4 for n in ("block_indices", "cu_seqlens") if n in t)
        assert work.bytes_min == 2 * (len(indices) + len(touched)) * (16 + 8) + index_bytes


FULL = ("disjoint", "touching", "overlapping", "unsorted", "mixed", "out_of_bounds")


def draw_spans(distribution, seed, **sizes):
    """Return spans [queries, n, 2] of one group."""
    op = ops.get("selection_ranges")
    shape = op.shape_model.model_validate({"B": 1, "G": 1, "H": 1, "D": 1, "Dv": 1, **sizes})
    ranges = op.draw(shape, DType.FLOAT16, distribution, seed, "cpu").tensors["ranges"]
    return shape, ranges[0, :, 0].tolist()


@given(
    distribution=st.sampled_from((*FULL, "reversed", "empty_rows", "all_empty")),
    queries=st.integers(1, 6),
    count=st.integers(1, 7),
    selected=st.integers(1, 60),
    beyond=st.integers(0, 50),
    seed=st.integers(0, 1000),
)
def test_spans_select_as_many_keys_as_asked_and_their_work_is_counted(
    distribution, queries, count, selected, beyond, seed
):
    keys = selected + beyond
    sizes = {"S": queries, "S_kv": keys, "n_spans": count, "L": selected}
    shape, spans = draw_spans(distribution, seed, **sizes)
    chosen = [set().union(*(range(*within(span, keys)) for span in row)) for row in spans]
    if distribution in FULL:
        assert {len(row) for row in chosen} == {selected}
    work = ops.get("selection_ranges").work(shape, DType.FLOAT16, distribution, seed)
    assert work.flops == 4 * sum(map(len, chosen))
    touched = len(set().union(*chosen))
    assert work.bytes_min == 4 * (queries + touched) + 4 * 2 * queries * count


def test_the_work_of_many_keys_takes_little_memory():
    """A mask of 65,536 queries by 65,536 keys would have 2^32 entries."""
    op = ops.get("selection_ranges")
    sizes = {"B": 1, "S": 65536, "G": 1, "H": 4, "D": 64, "S_kv": 65536, "n_spans": 4, "L": 1024}
    shape = op.shape_model.model_validate(sizes)
    tracemalloc.start()
    work = op.work(shape, DType.FLOAT16, "disjoint", 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert work.flops == 2 * 4 * 65536 * 1024 * 128
    assert peak < 1 << 27


def test_more_spans_than_a_host_can_hold_are_refused():
    sizes = {"B": 64, "S": 1 << 20, "G": 4, "H": 4, "D": 64, "S_kv": 64, "n_spans": 16, "L": 16}
    with pytest.raises(ValueError, match="n_spans"):
        ops.get("selection_ranges").shape_model.model_validate(sizes)


def test_spans_are_what_their_name_says():
    def spans(distribution):
        sizes = {"S": 64, "S_kv": 100, "n_spans": 4, "L": 32}
        return np.array(draw_spans(distribution, 1, **sizes)[1])

    assert (spans("touching")[:, :-1, 1] == spans("touching")[:, 1:, 0]).all()
    assert (spans("overlapping")[:, :-1, 1] > spans("overlapping")[:, 1:, 0]).any()
    assert (np.diff(spans("unsorted")[..., 0], axis=1) < 0).any()
    assert (spans("reversed")[:, ::2, 1] < spans("reversed")[:, ::2, 0]).any()
    assert spans("out_of_bounds").min() < 0 and spans("out_of_bounds").max() > 100
    assert (spans("empty_rows") == 0).all((1, 2)).sum() == 16
    assert len({int((s[:, 1] > s[:, 0]).sum()) for s in spans("mixed")}) > 1


def test_large_logits_are_large():
    _, _, inputs = drawn("selection_rows", "large_logits")
    q, k = inputs.tensors["q"].double(), inputs.tensors["k"].double()
    logits = q @ k.mT * inputs.options["sm_scale"]
    assert 3e3 < float(logits.std()) < 3e4


BACKWARD = [(n, d) for n, d in OF_KEYS if Direction.BACKWARD in ops.get(n).directions]


@pytest.mark.parametrize(("name", "distribution"), BACKWARD)
def test_the_gradients_are_those_of_the_definition(name, distribution):
    """The definition is autograd through one softmax for each query, over the keys it selects."""
    op, _, inputs = drawn(name, distribution)
    leaves = {
        n: t.double().requires_grad_() if n in op.differentiable else t
        for n, t in inputs.tensors.items()
    }
    definition = Inputs(leaves, inputs.options)
    grad_out = op.draw_grad(inputs, 5)
    total = torch.zeros((), dtype=torch.float64)
    for index in np.ndindex(*leaves["q"].shape[:-1]):
        k, v = keys_of(name, definition, index)
        weights = torch.softmax(k @ leaves["q"][index] * inputs.options["sm_scale"], 0)
        total = total + (weights @ v * grad_out[index].double()).sum()
    wanted = [leaves[n] for n in op.differentiable]
    right = torch.autograd.grad(total + 0 * sum(w.sum() for w in wanted), wanted)
    found = op.gradients(inputs, grad_out)
    assert list(found) == list(op.differentiable)
    for got, expected in zip(found.values(), right, strict=True):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def blocks(distribution, **sizes):
    op = ops.get("selection_blocks")
    shape = op.shape_model.model_validate({**SIZES["selection_blocks"], **sizes})
    return shape, op.draw(shape, DType.FLOAT16, distribution, 3, "cpu")


@pytest.mark.parametrize("distribution", ["random", "local", "packed"])
def test_blocks_are_chosen_once_among_the_visible_and_the_forced_are_there(distribution):
    _, inputs = blocks(distribution, B=1, T=2000, S=7)
    cu_seqlens = inputs.tensors.get("cu_seqlens", torch.tensor([0, 2000])).tolist()
    lengths = [end - start for start, end in itertools.pairwise(cu_seqlens)]
    position = np.concatenate([np.arange(length) for length in lengths])
    found = inputs.tensors["block_indices"][0].numpy()
    own = np.broadcast_to((position // 8)[:, None], found.shape[:2])
    for token, head in np.ndindex(*own.shape):
        row = found[token, head]
        given = sorted(row[row >= 0].tolist())
        assert len(set(given)) == len(given) == min(own[token, head] + 1, 7)
        assert given[-1] == own[token, head] and given[0] == 0
        assert own[token, head] == 0 or given[-2] == own[token, head] - 1
    # -1, for no block, may be at any place of a row.
    absent = (found == -1).any((0, 1))
    assert absent.all()


def test_what_tells_the_distributions_of_blocks_apart():
    def chosen(distribution):
        return blocks(distribution, B=1, T=4096, S=8)[1].tensors["block_indices"][0, :, 0].numpy()

    def agree(found):
        """Return the mean share of 8 blocks that a query has in common with the next query."""
        pairs = itertools.pairwise(found[2000:3001])
        return float(np.mean([len({*a} & {*b}) / 8 for a, b in pairs]))

    assert agree(chosen("random")) < 0.5 < 0.7 < agree(chosen("local"))
    assert {len(set(row.tolist()) - {-1}) for row in chosen("repeated")[512:]} == {4}
    every = blocks("empty_rows", B=1, T=4096, S=8)[1].tensors["block_indices"].numpy()
    assert (every == -1).all(-1).sum() == 4096 * 2 // 4


@pytest.mark.parametrize(
    ("distribution", "said"),
    [("dense", "S is 4"), ("packed", "B is 2")],
)
def test_dense_needs_room_and_packed_one_row(distribution, said):
    op = ops.get("selection_blocks")
    shape = op.shape_model.model_validate(SIZES["selection_blocks"])
    with pytest.raises(UsageError, match=said):
        op.draw(shape, DType.FLOAT16, distribution, 3, "cpu")
    with pytest.raises(UsageError, match=said):
        op.work(shape, DType.FLOAT16, distribution, 3)


def test_packed_sequences_are_unequal_and_one_is_a_single_token():
    _, _, inputs = drawn("sliding_window", "packed")
    lengths = inputs.tensors["cu_seqlens"].diff().tolist()
    assert sum(lengths) == 3 * 13 and min(lengths) == 1 and len(set(lengths)) == 3


@pytest.mark.parametrize(("S", "reads"), [(128, 7 + 128 + 128), (131072, 8191 + 1024 + 512)])
def test_a_decode_step_reads_what_the_paper_says(S, reads):
    """The paper has num_cmp(S) + n * l' + min(w, S). n is at most the number of blocks."""
    sizes = {"B": 1, "S": S, "HQ": 16, "H": 1, "D": 64, "block": 32, "stride": 16}
    sizes |= {"block_size": 64, "n_selected": 16, "window": 512}
    shape = ops.get("decode_step").shape_model.model_validate(sizes)
    assert shape.reads == reads


def test_a_decode_step_computes_what_its_branches_do():
    names = ("decode_step", "decode_compressed", "decode_selected", "decode_window", "decode_dense")
    step, *branches, dense = (
        drawn(name, "random")[0].work(drawn(name, "random")[1], DType.FLOAT16, "random", 3).flops
        for name in names
    )
    assert step == sum(branches) < dense * 2


@pytest.mark.parametrize(
    ("S", "n_selected", "window"),
    [(130, 4, 32), (130, 16, 32), (500, 4, 5), (500, 4, 200), (500, 8, 500), (500, 40, 900)],
)
def test_a_decode_step_reads_a_token_once_that_two_branches_need(S, n_selected, window):
    """The step reads the union of the tokens of the chosen blocks and of the window."""
    op = ops.get("decode_step")
    sizes = {"B": 3, "S": S, "HQ": 4, "H": 2, "D": 16, "Dv": 8, "block": 8, "stride": 4}
    sizes |= {"block_size": 16, "n_selected": n_selected, "window": window}
    shape = op.shape_model.model_validate(sizes)
    inputs = op.draw(shape, DType.FLOAT16, "random", 5, "cpu")
    tokens = 0
    for b, h in np.ndindex(3, 2):
        chosen = chosen_blocks(inputs, b, h)
        tokens += sum(i >= S - window or i // 16 in chosen for i in range(S))
    compressed = 3 * 2 * ((S - 8) // 4 + 1)
    elements = (3 * 4 + tokens + compressed) * (16 + 8) + 3 * 4 * 3
    assert op.work(shape, DType.FLOAT16, "random", 5).bytes_min == 2 * elements
