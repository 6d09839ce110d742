"""Problems of the driver: no GPU, or a driver that does not fit torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.machine.doctor.problem import Problem, error, note, warning
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import OLDEST_DRIVER, numbers


def examine(environment: Environment) -> Iterator[Problem]:
    if not environment.gpus:
        yield _explain_no_gpu(environment)
    too_old = list(_check_version(environment))
    yield from too_old
    software = environment.software
    hidden = environment.run.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    # In these cases another problem explains why.
    explained = not environment.gpus or too_old or hidden
    if software.torch_cuda and software.cuda_usable is False and not explained:
        why = environment.absent.get("software.cuda_usable", "it gives no reason")
        yield error(
            "cuda_unusable",
            f"torch cannot use the GPU: {why}.",
            "Run `nvidia-smi`; in a container check that it was started with `--gpus all`.",
        )
    if "gpus.nvml" in environment.absent:
        yield warning(
            "gpu_unwatched",
            "NVML does not show the GPU that torch uses: its clocks cannot be watched.",
            "Give this process access to NVML (`nvidia-smi` must list the device).",
        )


def _explain_no_gpu(environment: Environment) -> Problem:
    driver = environment.driver
    failed = driver.nvml_failure or "NVML shows no device"
    if "mismatch" in failed.lower():
        return error(
            "driver_mismatch",
            "The driver's kernel module and its libraries have different versions.",
            "Reboot the host.",
        )
    if driver.kernel_module is None and not driver.pci_devices:
        if environment.run.device == "cuda":
            return error(
                "no_gpu",
                "A CUDA device was asked for, and there is no NVIDIA GPU here.",
                "Run on a GPU host, or with `--device cpu`.",
            )
        return note(
            "no_gpu",
            "There is no NVIDIA GPU: Triton kernels are interpreted, and not timed.",
            "Run on a GPU host to time them.",
        )
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


def _check_version(environment: Environment) -> Iterator[Problem]:
    software = environment.software
    installed, cuda = environment.driver.version, software.torch_cuda
    if installed is None or cuda is None or software.cuda_usable:
        return  # with a forward-compatibility package, CUDA works on an older driver
    major = numbers(installed)[0] if numbers(installed) else None
    needed = OLDEST_DRIVER.get(numbers(cuda)[0])
    if needed is None or major is None or major >= needed:
        return
    fitting = [cuda_major for cuda_major, oldest in OLDEST_DRIVER.items() if major >= oldest]
    instead = f", or install a torch built for CUDA {max(fitting)}" if fitting else ""
    yield error(
        "driver_too_old",
        f"The driver {installed} is too old for the CUDA {cuda} that this torch was built for.",
        f"Update the driver to {needed} or newer{instead}.",
    )
