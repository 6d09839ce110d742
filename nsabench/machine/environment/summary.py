"""Summarise a machine in a few labelled lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.machine.environment.model import Environment, Gpu

_GIB = 1 << 30


def summarise(environment: Environment, gpus: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    host, software, driver = environment.host, environment.software, environment.driver
    for gpu in gpus:
        yield (
            f"GPU {gpu.index}",
            _join(*_describe_gpu(gpu), len(gpus) > 1 and gpu.used and "in use"),
        )
        yield f"GPU {gpu.index} state", _join(*_describe_state(gpu))
    if not environment.gpus:
        yield "GPU", f"none ({environment.absent.get('gpus', 'not seen')})"
    if driver.version or driver.kernel_module:
        cuda = driver.cuda and f"CUDA up to {driver.cuda}"
        yield "driver", _join(driver.version or driver.kernel_module, cuda)
    yield (
        "software",
        _join(
            f"torch {software.known_torch or 'missing'}"
            + (f" for CUDA {software.torch_cuda}" if software.torch_cuda else ""),
            f"triton {software.known_triton or 'missing'}",
            software.numpy and f"numpy {software.numpy}",
            f"Python {software.python}",
        ),
    )
    cudnn, ptxas = software.cudnn, software.ptxas
    if cudnn or ptxas:
        yield "libraries", _join(cudnn and f"cudnn {cudnn}", ptxas and f"ptxas {ptxas}")
    yield (
        "host",
        _join(
            host.cpu or host.architecture,
            f"{host.affinity_threads or '?'} of {host.threads or '?'} threads",
            host.ram_bytes and f"{host.ram_bytes / _GIB:.0f} GiB",
            host.os,
            host.kernel,
        ),
    )
    container = environment.container
    if container.runtime or container.combo:
        yield "container", _join(container.runtime, container.combo, container.image_digest)
    if environment.sandbox:
        yield "sandbox", environment.sandbox
    for name, commit in environment.run.commits.items():
        yield f"{name} source", commit
    yield "nsabench", software.nsabench


def _describe_gpu(gpu: Gpu) -> Iterator[object]:
    yield gpu.name or "unnamed"
    yield gpu.sm
    yield gpu.multiprocessors and f"{gpu.multiprocessors} SMs"
    yield gpu.memory_bytes and f"{gpu.memory_bytes / _GIB:.0f} GiB"
    yield gpu.l2_bytes and f"L2 {gpu.l2_bytes / (1 << 20):.0f} MiB"


def _describe_state(gpu: Gpu) -> Iterator[object]:
    yield gpu.power_limit_w and f"power limit {gpu.power_limit_w:.0f} W"
    yield gpu.sm_clock_mhz and f"SM clock {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz"
    yield gpu.temperature_c is not None and f"{gpu.temperature_c} °C"
    yield gpu.competing_processes is not None and f"{gpu.competing_processes} other processes"


def _join(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)
