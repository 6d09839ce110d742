"""Probes find kernels that are right only on drawn inputs."""

import math

import pytest
import torch

from nsabench import Unsupported, ops
from nsabench.implementations.baselines import selection_rows
from nsabench.implementations.baselines.bands import masked_sdpa
from nsabench.model.vocabulary import Direction, DType, Status
from nsabench.ops import Probe
from tests.checking import a_case, observations, registered, rounds

ROWS = a_case("selection_rows", {"N": 4, "H": 3, "D": 32, "Dv": 32, "L": 48}, timing=rounds(1))
BACKWARD = a_case(
    "sliding_window",
    {"B": 1, "T": 40, "HQ": 2, "H": 1, "D": 32, "Dv": 32, "window": 16},
    dtype=DType.FLOAT32,
    direction=Direction.BACKWARD,
    timing=rounds(1),
)


def right(q, k, v, *, sm_scale):
    weights = torch.softmax(q.float() @ k.float().mT * sm_scale, -1)
    return (weights @ v.float()).to(q.dtype)


def ignores_the_scale(q, k, v, *, sm_scale):
    return right(q, k, v, sm_scale=q.shape[-1] ** -0.5)


def ignores_strides(q, k, v, *, sm_scale):
    def flat(x):
        size = x.numel()
        return x.as_strided((size,), (1,), x.storage_offset()).view(x.shape)

    return right(flat(q), flat(k), flat(v), sm_scale=sm_scale)


def subtracts_no_maximum(q, k, v, *, sm_scale):
    weights = torch.exp(q.float() @ k.float().mT * sm_scale)
    return (weights @ v.float() / weights.sum(-1, keepdim=True)).to(q.dtype)


def forgets_the_tail(q, k, v, *, sm_scale):
    whole = max(k.shape[1] // 16 * 16, 16)
    return right(q, k[:, :whole], v[:, :whole], sm_scale=sm_scale)


def clamps_values(q, k, v, *, sm_scale):
    return right(q, k, v.clamp(-10, 10), sm_scale=sm_scale)


def rescales_nothing(q, k, v, *, sm_scale):
    """Goes over tiles of 128 keys, and keeps weights below an earlier maximum as they are."""
    highest, total, out = torch.tensor(-math.inf), 0.0, 0.0
    for keys, values in zip(k.float().split(128, -2), v.float().split(128, -2), strict=True):
        logits = q.float() @ keys.mT * sm_scale
        highest = torch.maximum(highest, logits.amax(-1, keepdim=True))
        weights = torch.exp(logits - highest)
        total, out = total + weights.sum(-1, keepdim=True), out + weights @ values
    return (out / total).to(q.dtype)


def reads_lines(q, k, v, *, sm_scale):
    """Reads q from the last multiple of 64 bytes before it, where a cache line begins."""
    before = q.data_ptr() % 64 // q.element_size()
    moved = q.as_strided(q.shape, q.stride(), q.storage_offset() - before)
    return right(moved, k, v, sm_scale=sm_scale)


def one(case, call):
    [found] = observations(case, [registered(case.op, "mine", call)], probes=True)
    return found


@pytest.mark.parametrize(
    ("kernel", "probe"),
    [
        (ignores_the_scale, "another scale"),
        (ignores_strides, "strided inputs"),
        (subtracts_no_maximum, "large logits"),
        (forgets_the_tail, "65 keys"),
        (rescales_nothing, "253 keys"),
        (clamps_values, "outliers in v"),
        (reads_lines, "inputs aligned to 16 bytes"),
    ],
)
def test_what_a_kernel_ignores_is_found_and_named(kernel, probe):
    found = one(ROWS, kernel)
    assert found.status is Status.WRONG
    assert found.reason.startswith(f"with {probe}, ")
    assert found.diagnosis.startswith(f"with {probe}, ")
    assert not found.samples.time_ms


def test_a_probe_has_a_window_of_several_tiles():
    def mixes_two_windows(*tensors, window, **options):
        near, far = (masked_sdpa(*tensors, window=w, **options) for w in (min(window, 128), window))
        return (near + far) / 2

    case = BACKWARD.model_copy(update={"direction": Direction.FORWARD})
    found = one(case, mixes_two_windows)
    assert found.status is Status.WRONG and found.reason.startswith("with 253 keys, ")


def test_probes_come_after_timing_so_that_they_cannot_change_what_is_timed():
    lengths = []

    def notes_lengths(q, k, v, *, sm_scale):
        lengths.append(k.shape[1])
        return right(q, k, v, sm_scale=sm_scale)

    assert one(ROWS, notes_lengths).samples.time_ms
    first = lengths.index(65)
    assert first > 3 and set(lengths[:first]) == {48}
    assert 48 not in lengths[first:]


def counts_a_block_for_each_slot(q, k, v, block_indices, cu_seqlens=None, *, sm_scale, block_size):
    (batch, tokens, heads, width), place = q.shape, torch.arange(k.shape[1])
    counts = (place // block_size == block_indices[..., None]).sum(3)  # [B, T, H, keys]
    counts = counts * (place <= torch.arange(tokens)[:, None])[:, None]
    by_group = q.float().view(batch, tokens, k.shape[2], -1, width)
    scores = torch.einsum("bthgd,bshd->bthgs", by_group, k.float()) * sm_scale
    weights = (scores + counts[:, :, :, None].log()).softmax(-1).nan_to_num()
    out = torch.einsum("bthgs,bshd->bthgd", weights, v.float())
    return out.reshape(batch, tokens, heads, -1).to(v.dtype)


def test_a_block_that_is_given_twice_is_tried():
    sizes = {"B": 1, "T": 32, "HQ": 2, "H": 1, "D": 16, "Dv": 16, "S": 2, "block_size": 16}
    found = one(a_case("selection_blocks", sizes, timing=rounds(1)), counts_a_block_for_each_slot)
    assert found.reason.startswith("with blocks given twice, ")


def test_rows_without_keys_are_tried():
    def gives_nan(q, k, v, cu_seqlens, *, sm_scale, max_seqlen):
        options = {"sm_scale": sm_scale, "max_seqlen": max_seqlen}
        out = selection_rows.packed_sdpa(q, k, v, cu_seqlens, **options)
        return out.masked_fill((cu_seqlens.diff() == 0).view(-1, 1, 1), math.nan)

    shape = {"N": 4, "H": 2, "D": 32, "Dv": 32, "L": 40}
    found = one(a_case("selection_varlen", shape, timing=rounds(1)), gives_nan)
    assert found.status is Status.WRONG
    assert found.reason.startswith("with an empty selection, ")


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_what_is_right_stays_right_and_its_errors_are_those_of_its_case(dtype):
    found = one(ROWS.model_copy(update={"dtype": dtype}), right)
    assert (found.status, found.reason, found.diagnosis) == (Status.OK, "", "")
    assert not found.notes
    assert found.rel_l2 is not None and found.rel_l2 < 1e-2


def test_a_probe_without_an_oracle_is_left_out(monkeypatch):
    def lacks_memory(inputs):
        raise torch.OutOfMemoryError("tried to allocate too much")

    first = {"too much": Probe(ROWS, lacks_memory)}
    probes = first | dict(ops.probes(ROWS))
    monkeypatch.setattr(type(ops.get(ROWS.op)), "probes", lambda op, case: probes)
    assert one(ROWS, right).status is Status.OK
    assert one(ROWS, ignores_the_scale).reason.startswith("with another scale, ")


def test_a_probe_whose_inputs_do_not_fit_beside_the_kernel_is_left_out(monkeypatch):
    drawn = []

    def lacks_memory_later(inputs):
        drawn.append(inputs)
        if len(drawn) > 1:  # the first call is the checker's
            raise torch.OutOfMemoryError("tried to allocate too much")
        return inputs

    probes = {"too much": Probe(ROWS, lacks_memory_later)}
    monkeypatch.setattr(type(ops.get(ROWS.op)), "probes", lambda op, case: probes)
    found = one(ROWS, right)
    assert found.status is Status.OK
    assert any("too much" in note for note in found.notes)


def test_an_op_whose_probes_fail_has_none(monkeypatch):
    def fail(op, case):
        raise KeyError("no such size")

    monkeypatch.setattr(type(ops.get(ROWS.op)), "probes", fail)
    assert one(ROWS, right).status is Status.OK


def test_probes_are_small_on_every_axis_but_those_of_heads():
    shape = {"B": 1, "S": 4096, "G": 1, "H": 1, "D": 32, "Dv": 32}
    case = a_case("selection_ranges", {**shape, "S_kv": 65536, "n_spans": 16, "L": 1024})
    assert all(ops.work(probe.case).bytes_min < 1 << 17 for probe in ops.probes(case).values())


def test_a_backward_is_probed_too():
    def ignores(*tensors, **options):
        right = masked_sdpa(*tensors, **options)
        wrong = masked_sdpa(*tensors, **options | {"sm_scale": tensors[0].shape[-1] ** -0.5})
        return right.detach() + wrong - wrong.detach()

    assert one(BACKWARD, masked_sdpa).status is Status.OK
    found = one(BACKWARD, ignores)
    assert found.status is Status.WRONG and found.reason.startswith("with another scale, ")


def test_a_kernel_may_decline_and_the_record_says_so():
    def picky(q, k, v, *, sm_scale):
        if k.shape[1] % 16:
            raise Unsupported("keys must be a multiple of 16")
        return right(q, k, v, sm_scale=sm_scale)

    found = one(ROWS, picky)
    assert found.status is Status.OK and found.samples.time_ms
    assert "it declines 65 keys: keys must be a multiple of 16" in found.notes


@pytest.mark.parametrize(
    ("name", "distribution"), [(n, d) for n in ops.shipped() for d in ops.get(n).distributions]
)
def test_every_op_has_probes_whose_oracle_is_finite(name, distribution):
    op = ops.get(name)
    fields = dict(size.split("=") for size in op.check_shapes["cpu"][0].split(","))
    shape = op.shape_model.model_validate(fields).model_dump()
    probes = ops.probes(a_case(name, shape).model_copy(update={"distribution": distribution}))
    asked = {"65 keys", "253 keys", "another scale", "large logits", "strided inputs"}
    assert asked <= probes.keys()
    for probe in probes.values():
        case = probe.case
        sizes = op.shape_model.model_validate(case.shape)
        inputs = probe.change(op.draw(sizes, case.dtype, case.distribution, 1, "cpu"))
        assert op.oracle(inputs).isfinite().all()
    assert list(probes)[-1] == "inputs aligned to 16 bytes"
