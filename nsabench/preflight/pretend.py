"""Pretend that there is a GPU, so that implementations choose their configuration for it.

Tensors are on `meta` (no memory) or on the CPU, and claim to be on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from nsabench.preflight.targets import KIB, REGISTERS, Architecture

GPU = torch.device("cuda", 0)
CLOCK_KHZ = 1_500_000  # kernels may estimate their time with it; any constant will do


class TensorsOnCuda(TorchFunctionMode):  # type: ignore[misc]
    """Makes tensors claim to be on the GPU. All, also new ones, are on `real`: "meta" or "cpu"."""

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
        # Each access makes a new getter, so compare with `==` and not with `is`.
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


@contextmanager
def cuda(architecture: Architecture) -> Iterator[None]:
    """Let torch.cuda describe a GPU of the architecture. Kernels cannot run on it."""
    gpu = SimpleNamespace(
        name=architecture.gpu,
        major=architecture.capability // 10,
        minor=architecture.capability % 10,
        multi_processor_count=architecture.sheet.sms,
        total_memory=architecture.sheet.memory_gib << 30,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=architecture.shared_per_block,
        shared_memory_per_multiprocessor=architecture.shared_per_sm,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=architecture.warps_per_sm * 32,
        warp_size=32,
        L2_cache_size=architecture.sheet.l2_mib << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
    )
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


@contextmanager
def operators_run(real: str) -> Iterator[None]:
    """Let `torch.library.custom_op` operators run their code, not their shape function."""

    def pretending(code: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with TensorsOnCuda(real):
                return code(*args, **kwargs)

        return run

    with ExitStack() as patches:
        for operator in list(OPDEFS.values()):
            if operator._init_fn.__module__.startswith("torch."):
                continue  # torch's decompositions would call the operator again
            kernels = operator._backend_fns
            run = pretending(kernels.get("cuda") or kernels.get(None) or operator._init_fn)
            patches.enter_context(mock.patch.object(operator, "_abstract_fn", run))
            patches.enter_context(mock.patch.dict(kernels, dict.fromkeys(kernels, run)))
        yield


def install_driver(architecture: Architecture) -> None:
    target = GPUTarget("cuda", architecture.capability, 32)
    properties = {
        "max_shared_mem": architecture.shared_per_block,
        "max_num_regs": REGISTERS,
        "multiprocessor_count": architecture.sheet.sms,
        "warpSize": 32,
        "sm_clock_rate": CLOCK_KHZ,
        "mem_clock_rate": CLOCK_KHZ,
        "mem_bus_width": 384,
    }
    driver.set_active(
        SimpleNamespace(
            binary_ext="cubin",
            utils=SimpleNamespace(get_device_properties=lambda device: properties),
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            set_current_device=lambda device: None,
            get_current_stream=lambda device=0: 0,
            get_device_capability=lambda device=0: divmod(architecture.capability, 10),
            get_active_torch_device=lambda: GPU,
            is_active=lambda: True,
        )
    )
