"""Is there a GPU, and does its driver suit the CUDA of this torch?"""

from __future__ import annotations

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import OLDEST_DRIVER, numbers, pair_of


def gpu_out_of_reach(environment: Environment) -> Problem | None:
    """There is NVIDIA hardware or a driver, and still no device to be had."""
    driver = environment.driver
    if environment.gpus:
        return None
    failed = driver.nvml_failure or "NVML shows no device"
    if "mismatch" in failed.lower():
        return error(
            "driver_mismatch",
            "The driver's kernel module and its libraries have different versions: the driver was "
            "updated under a running kernel.",
            "Reboot the host.",
        )
    if driver.kernel_module is None and driver.pci_devices == 0:
        return None
    if environment.container.shut_in:
        return error(
            "gpu_not_passed",
            "The host has an NVIDIA GPU, but this container does not see it.",
            "Start it with `docker run --gpus all` (needs the NVIDIA Container Toolkit).",
        )
    if driver.kernel_module is None:
        return error(
            "driver_missing",
            "There is an NVIDIA GPU on the PCI bus, but no driver is loaded.",
            f"Install the NVIDIA driver, {OLDEST_DRIVER[max(OLDEST_DRIVER)]} or newer.",
        )
    return error(
        "driver_broken",
        f"The NVIDIA driver {driver.kernel_module} is loaded but does not answer: {failed}.",
        "Run `nvidia-smi` and look into `dmesg` for lines with NVRM or Xid.",
    )


def no_gpu(environment: Environment) -> Problem | None:
    """Nothing of NVIDIA's anywhere: fine for parity, unless a GPU was asked for."""
    driver = environment.driver
    if environment.gpus or driver.kernel_module is not None or driver.pci_devices:
        return None
    if environment.run.device == "cuda":
        return error(
            "no_gpu",
            "A CUDA device was asked for, and there is no NVIDIA GPU here.",
            "Run on a GPU host, or with `--device cpu`.",
        )
    return note(
        "no_gpu",
        "There is no NVIDIA GPU: Triton kernels are checked through the interpreter and not timed.",
        "Run on a GPU host to time them.",
    )


def driver_too_old(environment: Environment) -> Problem | None:
    """CUDA of one major version runs on any driver from that version's first on."""
    torch = environment.software.torch
    cuda, installed = cuda_of_torch(environment), environment.driver.version
    if cuda is None or installed is None or (torch is not None and torch.cuda_usable):
        return None  # with a forward-compatibility package an older driver is fine: CUDA works
    major = numbers(installed)[0] if numbers(installed) else None
    needed = OLDEST_DRIVER.get(numbers(cuda)[0])
    if needed is None or major is None or major >= needed:
        return None
    fitting = [cuda_major for cuda_major, oldest in OLDEST_DRIVER.items() if major >= oldest]
    instead = f", or install a torch built for CUDA {max(fitting)}" if fitting else ""
    return error(
        "driver_too_old",
        f"The driver {installed} is too old for the CUDA {cuda} that this torch was built for.",
        f"Update the driver to {needed} or newer{instead}.",
    )


def cuda_unusable(environment: Environment) -> Problem | None:
    torch = environment.software.torch
    if torch is None or torch.cuda is None or torch.cuda_usable is not False:
        return None
    hidden = environment.run.variables.get("CUDA_VISIBLE_DEVICES")
    if not environment.gpus or driver_too_old(environment) or hidden in ("", "-1", "NoDevFiles"):
        return None  # another check says why
    return error(
        "cuda_unusable",
        f"torch cannot use the GPU: {torch.cuda_failure or 'it gives no reason'}.",
        "Run `nvidia-smi`; in a container check that it was started with `--gpus all`.",
    )


def unwatched(environment: Environment) -> Problem | None:
    if "gpus.nvml" not in environment.absent:
        return None
    return warning(
        "gpu_unwatched",
        "torch uses a GPU that NVML does not show, so clocks and throttling cannot be watched.",
        "Give this process access to NVML (`nvidia-smi` must list the device).",
    )


def cuda_of_torch(environment: Environment) -> str | None:
    """The CUDA that torch was built for, as far as can be told without importing it."""
    torch = environment.software.torch
    if torch is not None:
        return torch.cuda
    installed = environment.software.installed("torch") or ""
    build = installed.partition("+")[2]
    if build.startswith("cu") and build[2:].isdigit():  # "cu130"
        return f"{build[2:-1]}.{build[-1]}"
    pair = pair_of(installed)
    return pair.cuda if pair is not None and not build else None


CHECKS = (gpu_out_of_reach, no_gpu, driver_too_old, cuda_unusable, unwatched)
