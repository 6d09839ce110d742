"""Do torch, triton and numpy belong together, and do they suit the device?"""

from __future__ import annotations

import re

from nsabench.machine.doctor.gpu import watched
from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import NO_WORKER, Environment
from nsabench.machine.environment.pairs import OLDEST_DRIVER, PAIRS, numbers, pair_of


def torch_missing(environment: Environment) -> Problem | None:
    software = environment.software
    if software.torch is not None:
        return None
    installed = software.installed("torch")
    if installed is None:
        return error(
            "torch_missing",
            "torch is not installed, and nothing can be measured without it.",
            "Run `pip install 'nsabench[torch]'`, or use one of the images.",
        )
    why = environment.absent.get("software.torch", NO_WORKER)
    if why == NO_WORKER:
        return None
    return error(
        "torch_broken",
        f"torch {installed} is installed but cannot be imported: {why}.",
        "Reinstall it: `pip install --force-reinstall torch`.",
    )


def triton_missing(environment: Environment) -> Problem | None:
    software = environment.software
    if software.triton is not None or _torch_version(environment) is None:
        return None
    why = environment.absent.get("software.triton", NO_WORKER)
    installed = software.installed("triton") or software.installed("pytorch-triton")
    wanted = _wanted_triton(environment)
    pinned = f"triton=={wanted}" if wanted else "triton"
    if installed is None:
        return warning(
            "triton_missing",
            "triton is not installed: Triton kernels cannot run.",
            f"Run `pip install {pinned}`.",
        )
    if why == NO_WORKER or software.torch is None:
        return None
    return error(
        "triton_broken",
        f"triton {installed} is installed but cannot be imported: {why}.",
        f"Reinstall it: `pip install --force-reinstall {pinned}`.",
    )


def unpaired(environment: Environment) -> Problem | None:
    """Every torch pins one triton; others often import, and then miscompile or fail late."""
    torch, triton = _torch_version(environment), _triton_version(environment)
    wanted = _wanted_triton(environment)
    if torch is None or triton is None or wanted is None:
        return None
    if numbers(triton)[:2] == numbers(wanted)[:2]:
        return None
    what = f"torch {torch} belongs with triton {wanted}, and triton {triton} is installed."
    matching = next((p.torch for p in PAIRS if numbers(p.triton)[:2] == numbers(triton)[:2]), None)
    other = f", or a torch that pins {triton} (such as {matching})" if matching else ""
    remedy = f"Run `pip install triton=={wanted}`{other}."
    # Without a GPU only the interpreter is used, which depends on torch very little.
    return (warning if environment.gpus else note)("unpaired", what, remedy)


def torch_without_cuda(environment: Environment) -> Problem | None:
    torch = environment.software.torch
    version = _torch_version(environment)
    if not environment.gpus or version is None:
        return None
    if torch is not None and (torch.cuda or torch.hip):
        return None
    if torch is None and not version.endswith("+cpu"):
        return None
    return error(
        "torch_without_cuda",
        f"There is a GPU, but torch {version} was built without CUDA.",
        f"Run `pip install --force-reinstall torch=={version.partition('+')[0]}"
        f"{_wheel_index(environment)}`.",
    )


def architecture_unsupported(environment: Environment) -> Problem | None:
    """The device is newer, or older, than any that this torch has code for."""
    torch = environment.software.torch
    if torch is None or not torch.architectures:
        return None
    for gpu in watched(environment):
        capability = numbers(gpu.compute_capability or "")
        if len(capability) == 2 and not any(
            _runs_on(code, capability) for code in torch.architectures
        ):
            sm = f"sm_{capability[0]}{capability[1]}"
            return error(
                "architecture_unsupported",
                f"torch {torch.version} holds no code for {gpu.name or 'this GPU'} ({sm}).",
                f"Install a torch whose `torch.cuda.get_arch_list()` has {sm}.",
            )
    return None


def numpy_too_new(environment: Environment) -> Problem | None:
    numpy = environment.software.numpy or environment.software.installed("numpy")
    torch, triton = _torch_version(environment), _triton_version(environment)
    if numpy is None or torch is None:
        return None
    if numbers(torch)[:2] < (2, 4) and numbers(numpy) >= (2,):
        return error(
            "numpy_too_new",
            f"torch {torch} was built for numpy 1, and numpy {numpy} is installed.",
            "Run `pip install 'numpy<2'`.",
        )
    if environment.gpus or triton is None:
        return None  # what follows is about the interpreter
    if numbers(triton)[:2] <= (3, 1) and numbers(numpy) >= (2,):
        return warning(
            "numpy_too_new",
            f"The interpreter of triton {triton} computes NaN with numpy {numpy}.",
            "Run `pip install 'numpy<2'`.",
        )
    if numbers(numpy)[:2] >= (2, 4):
        return warning(
            "numpy_too_new",
            f"numpy {numpy} breaks dynamic `range` in Triton's interpreter, which stands in for "
            "the GPU here.",
            "Run `pip install 'numpy<2.4'`.",
        )
    return None


def _torch_version(environment: Environment) -> str | None:
    torch = environment.software.torch
    return torch.version if torch is not None else environment.software.installed("torch")


def _triton_version(environment: Environment) -> str | None:
    software = environment.software
    return software.triton or software.installed("triton") or software.installed("pytorch-triton")


def _wanted_triton(environment: Environment) -> str | None:
    """What this torch pins itself, or else what our table says."""
    torch = environment.software.torch
    if torch is not None and torch.requires_triton:
        return torch.requires_triton
    pair = pair_of(_torch_version(environment) or "")
    return pair.triton if pair is not None else None


def _runs_on(code: str, capability: tuple[int, ...]) -> bool:
    """Machine code runs within its major version; PTX ("compute") on anything later."""
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    if match is None:
        return True  # a notation of the future is no reason to refuse
    own = (int(match[2]), int(match[3]))
    if match[4] == "a":  # specific to one architecture
        return own == capability
    if match[1] == "compute" and not match[4]:
        return own <= capability
    return own[0] == capability[0] and own[1] <= capability[1]


def _wheel_index(environment: Environment) -> str:
    driver = numbers(environment.driver.version or "")
    pair = pair_of(_torch_version(environment) or "")
    if pair is None or driver < (OLDEST_DRIVER[numbers(pair.cuda)[0]],):
        return ""
    return f" --index-url https://download.pytorch.org/whl/cu{pair.cuda.replace('.', '')}"


CHECKS = (
    torch_missing,
    triton_missing,
    unpaired,
    torch_without_cuda,
    architecture_unsupported,
    numpy_too_new,
)
