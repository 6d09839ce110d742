"""A pretended GPU: inside it tensors say they are on CUDA, and torch.cuda tells of one device.

Implementations choose configurations by the device they see, so a launch that is recorded for an
architecture must come from a call that saw a GPU of it. The tensors themselves are on `meta`
(shapes without memory) or on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from nsabench.preflight.architectures import KIB, REGISTERS, Architecture

GPU = torch.device("cuda", 0)


class _OnCuda(TorchFunctionMode):  # type: ignore[misc]
    """Tensors on `real` answer as if they were on the GPU, and requests for the GPU get `real`."""

    def __init__(self, real: str) -> None:
        super().__init__()
        self._real = torch.device(real)
        tensor = torch.Tensor
        self._answers: list[tuple[Any, Any]] = [
            (tensor.device.__get__, GPU),
            (tensor.is_cuda.__get__, True),
            (tensor.is_cpu.__get__, False),
            (tensor.is_meta.__get__, False),
            (tensor.get_device, 0),
        ]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Getters are made anew at each access, so they are equal but not the same object.
        for getter, answer in self._answers:
            if func == getter:
                return answer
        if func == torch.Tensor.cuda:
            return args[0]
        kwargs = {name: self._place(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._place, args), **kwargs)

    def _place(self, value: Any) -> Any:
        cuda = isinstance(value, torch.device) and value.type == "cuda"
        if cuda or (isinstance(value, str) and value.split(":")[0] == "cuda"):
            return self._real
        return value


def properties(architecture: Architecture) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` says of the architecture's GPU."""
    return SimpleNamespace(
        name=architecture.gpu,
        major=architecture.capability // 10,
        minor=architecture.capability % 10,
        multi_processor_count=architecture.processors,
        total_memory=architecture.memory_gib << 30,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=architecture.shared_per_block,
        shared_memory_per_multiprocessor=architecture.shared_per_sm,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=architecture.warps_per_sm * 32,
        warp_size=32,
        L2_cache_size=architecture.l2_mib << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


@contextmanager
def cuda(architecture: Architecture) -> Iterator[None]:
    """torch.cuda tells of one GPU of the architecture; nothing can be run on it."""
    gpu = properties(architecture)
    stream = SimpleNamespace(
        cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: gpu,
        "get_device_capability": lambda device=None: (gpu.major, gpu.minor),
        "get_device_name": lambda device=None: gpu.name,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "synchronize": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "set_device": lambda device: None,
    }
    with mock.patch.multiple(torch.cuda, **answers):
        yield


def tensors_on_cuda(real: str) -> TorchFunctionMode:
    """Within this context, tensors on `real` ("meta" or "cpu") say that they are on the GPU."""
    return _OnCuda(real)


@contextmanager
def operators_run(real: str) -> Iterator[None]:
    """Operators made by `torch.library.custom_op` run their code on tensors on `real`.

    On `meta` torch would call what tells their shapes in its place, and it leaves the mode that
    pretends before it calls either.
    """
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:  # torch < 2.4, which has no such operators
        yield
        return

    def pretending(code: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with tensors_on_cuda(real):
                return code(*args, **kwargs)

        return run

    with ExitStack() as patches:
        for operator in list(OPDEFS.values()):
            if operator._init_fn.__module__.startswith("torch."):
                continue  # decompositions of torch's own operators, whose code asks them again
            kernels = operator._backend_fns
            run = pretending(kernels.get("cuda") or kernels.get(None) or operator._init_fn)
            patches.enter_context(mock.patch.object(operator, "_abstract_fn", run))
            patches.enter_context(mock.patch.dict(kernels, dict.fromkeys(kernels, run)))
        yield
