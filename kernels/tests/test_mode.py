"""How a call is made, and that the calls which ask act on it."""

from __future__ import annotations

import nsa_kernels
import pytest
import torch
from nsa_kernels.launch.mode import Mode, mode, traced
from torch._subclasses.fake_tensor import FakeTensorMode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_plain_tensors_and_parameters_are_eager() -> None:
    x = torch.zeros(3, device=DEVICE)
    for tensor in (x, torch.nn.Parameter(x)):
        assert mode(tensor) is Mode.EAGER and not traced(tensor)


def test_tensors_without_values_are_traced() -> None:
    with FakeTensorMode():
        x = torch.zeros(3, device=DEVICE)
        assert mode(x) is Mode.TRACED and traced(x)


def test_under_torch_compile_a_call_is_traced() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if mode(x) is Mode.TRACED else 2) + (10 if traced(x) else 20)

    x = torch.zeros(3, device=DEVICE)
    assert torch.equal(call(x), x + 22)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="eager")(x), x + 11)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_while_a_graph_captures_a_call_is_captured() -> None:
    x, modes = torch.zeros(3, device=DEVICE), []
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        modes.append(mode(x))
        x.add_(1)
    assert modes == [Mode.CAPTURED] and mode(x) is Mode.EAGER


def test_blocks_of_tensors_without_values_launch_nothing() -> None:
    """Few tokens take the query-major kernel, past the operators where a call is eager."""
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 16, heads, 16, device=DEVICE) for heads in (4, 2, 2))
        index = torch.empty(1, 16, 2, 3, dtype=torch.int32, device=DEVICE)
        out, lse = nsa_kernels.block_selection_attention(
            q, k, v, index, block_size=16, return_lse=True
        )
    assert out.shape == q.shape and lse.shape == q.shape[:3]


def test_the_gate_counts_parameters_as_any_tensor() -> None:
    nsa_kernels.reset_routing_report()
    q = torch.nn.Parameter(torch.randn(1, 2, 1, 2, 16, device=DEVICE))
    k, v = torch.randn(2, 1, 1, 8, 16, device=DEVICE)
    spans = torch.tensor([0, 5], dtype=torch.int32, device=DEVICE).expand(1, 2, 1, 1, 2)
    nsa_kernels.selection_attention(q, k, v, spans).sum().backward()
    assert nsa_kernels.routing_report()["kernel"] == 1 and q.grad is not None
