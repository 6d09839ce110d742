"""Problems of torch, triton and numpy with each other and with the device."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsabench.machine.doctor.gpu import list_watched
from nsabench.machine.doctor.problem import MachineProblem, error, note, warning
from nsabench.machine.environment.model import NO_WORKER, Environment
from nsabench.machine.environment.pairs import PAIRS, numbers, pair_of


def examine(environment: Environment) -> Iterator[MachineProblem]:
    yield from _check_torch(environment)
    torch = environment.software.known_torch
    if torch is None:
        return
    yield from _check_triton(environment)
    yield from _check_pair(environment, torch)
    yield from _check_architectures(environment, torch)
    yield from _check_numpy(environment)


def _check_torch(environment: Environment) -> Iterator[MachineProblem]:
    software = environment.software
    installed = software.distributions.get("torch")
    why = environment.absent.get("software.torch", NO_WORKER)
    if software.torch is None and installed is None:
        yield error(
            "torch_missing",
            "torch is not installed, and nothing can be measured without it.",
            "Run `pip install 'nsabench[torch]'`, or use one of the images.",
        )
    elif software.torch is None and why != NO_WORKER:
        yield error(
            "torch_broken",
            f"torch {installed} is installed but cannot be imported: {why}.",
            "Reinstall it: `pip install --force-reinstall torch`.",
        )


def _check_triton(environment: Environment) -> Iterator[MachineProblem]:
    software = environment.software
    if software.triton is not None:
        return
    why = environment.absent.get("software.triton", NO_WORKER)
    wanted = _find_pinned_triton(environment)
    pinned = f"triton=={wanted}" if wanted else "triton"
    if software.known_triton is None:
        yield warning(
            "triton_missing",
            "triton is not installed: Triton kernels cannot run.",
            f"Run `pip install {pinned}`.",
        )
    elif why != NO_WORKER and software.torch is not None:
        yield error(
            "triton_broken",
            f"triton {software.known_triton} is installed but cannot be imported: {why}.",
            f"Reinstall it: `pip install --force-reinstall {pinned}`.",
        )


def _check_pair(environment: Environment, torch: str) -> Iterator[MachineProblem]:
    """Yield a problem if torch pins another triton: such a pair may fail after its import."""
    triton, wanted = environment.software.known_triton, _find_pinned_triton(environment)
    if triton is None or wanted is None or numbers(triton)[:2] == numbers(wanted)[:2]:
        return
    matching = next((p.torch for p in PAIRS if numbers(p.triton)[:2] == numbers(triton)[:2]), None)
    other = f", or a torch that pins {triton} (such as {matching})" if matching else ""
    # Without a GPU only Triton's interpreter is used, which hardly depends on torch.
    make = warning if environment.gpus else note
    yield make(
        "unpaired",
        f"torch {torch} belongs with triton {wanted}, but triton {triton} is installed.",
        f"Run `pip install triton=={wanted}`{other}.",
    )


def _check_architectures(environment: Environment, version: str) -> Iterator[MachineProblem]:
    software = environment.software
    has_cuda = software.torch_cuda if software.torch else not version.endswith("+cpu")
    if environment.gpus and not has_cuda:
        yield error(
            "torch_without_cuda",
            f"There is a GPU, but torch {version} was built without CUDA.",
            "Install a torch that was built for CUDA: https://pytorch.org/get-started/locally.",
        )
    for gpu in list_watched(environment):
        capability = numbers(gpu.compute_capability or "")
        codes = software.torch_architectures
        if codes and len(capability) == 2 and not any(_runs_on(c, capability) for c in codes):
            sm = f"sm_{capability[0]}{capability[1]}"
            yield error(
                "architecture_unsupported",
                f"torch {version} contains no code for {gpu.name or 'this GPU'} ({sm}).",
                f"Install a torch whose `torch.cuda.get_arch_list()` contains {sm}.",
            )
            return


def _check_numpy(environment: Environment) -> Iterator[MachineProblem]:
    numpy = environment.software.numpy or environment.software.distributions.get("numpy")
    triton = environment.software.known_triton
    if numpy is None or triton is None or environment.gpus:
        return  # only the interpreter needs numpy
    if numbers(triton)[:2] <= (3, 1) and numbers(numpy) >= (2,):
        yield warning(
            "numpy_too_new",
            f"The interpreter of triton {triton} computes NaN with numpy {numpy}.",
            "Run `pip install 'numpy<2'`.",
        )
    elif numbers(numpy)[:2] >= (2, 4):
        yield warning(
            "numpy_too_new",
            f"numpy {numpy} breaks dynamic `range` in Triton's interpreter, which is used here.",
            "Run `pip install 'numpy<2.4'`.",
        )


def _find_pinned_triton(environment: Environment) -> str | None:
    pair = pair_of(environment.software.known_torch or "")
    return environment.software.pinned_triton or (pair.triton if pair is not None else None)


def _runs_on(code: str, capability: tuple[int, ...]) -> bool:
    """Return whether code runs on a device: PTX on any later one, sm_* in its major version."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    if match is None:
        return True  # an unknown notation is not a reason to refuse
    own = (int(match[2]), int(match[3]))
    if match[4] == "a":  # the suffix of code for one architecture only
        return own == capability
    if match[1] == "compute" and not match[4]:
        return own <= capability
    return own[0] == capability[0] and own[1] <= capability[1]
