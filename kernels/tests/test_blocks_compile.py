"""The time to compile block selection must not grow with the number of blocks that a query
chooses."""

from collections import defaultdict

from compiled import compiled

MATRIX = """\
op: selection_blocks
axes: {{dtype: [bfloat16], direction: backward}}
include:
  - {{B: 1, T: 16384, HQ: 16, H: 4, D: 128, S: {chosen}}}
"""


def code(folder, chosen):
    """Bytes of the cubin of each variant of each kernel, compiled for sm_90 without a GPU."""
    kernels = defaultdict(list)
    for row in compiled(folder, MATRIX.format(chosen=chosen), "sm_90"):
        if row["implementation"] == "blocks":
            kernels[row["kernel"]].append(row["cubin_bytes"])
    return kernels


def test_code_does_not_grow_with_the_chosen_blocks(tmp_path):
    few, more = code(tmp_path, 16), code(tmp_path, 256)
    assert few.keys() == more.keys() and {"merge_kernel", "dq_kernel", "bins_kernel"} <= few.keys()
    for kernel, sizes in more.items():
        assert max(sizes) <= 4 * max(few[kernel]), kernel
        # Heads in turns: the first, the second and the others must not be compiled apart.
        assert len(sizes) <= len(few[kernel]) + (kernel == "count_kernel"), (kernel, sizes)
