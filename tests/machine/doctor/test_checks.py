"""Each check of the doctor names its problem, and is silent about a machine without it."""

import pytest

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor import Severity, examine, refuse_unfit
from nsabench.machine.doctor.gpu import choose_device
from nsabench.machine.environment.model import Cgroup, Driver
from tests.machine.doctor.conftest import set_free_disk

GIB = 1 << 30


def only(environment, tmp_path):
    problems = examine(environment, results=tmp_path)
    assert len(problems) == 1, problems
    for sentence in (problems[0].what, problems[0].remedy):
        assert sentence.endswith(".") and "None" not in sentence
    return problems[0]


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"competing_processes": 1, "competing_memory_bytes": 3 * GIB}, "gpu_busy", "3.0 GiB"),
        ({"utilisation_percent": 40}, "gpu_busy", "40 % busy"),
        ({"memory_used_bytes": 20 * GIB}, "gpu_busy", "20.0 GiB"),
        ({"clock_event_reasons": ["hw_slowdown", "gpu_idle"]}, "gpu_throttled", ": hw_slowdown."),
        ({"power_limit_w": 500.0}, "gpu_power_limited", "limited to 500 W"),
        ({"mig": True}, "gpu_mig", "slice"),
        ({"persistence": False}, "gpu_persistence_off", "persistence"),
        ({"memory_bytes": 3 * GIB}, "gpu_little_memory", "2.5 GiB free"),
        ({"compute_mode": "prohibited"}, "gpu_prohibited", "prohibited"),
        ({"ecc_uncorrected": 1}, "gpu_memory_faults", "1 uncorrected memory error since"),
        ({"remap_pending": True}, "gpu_memory_faults", "waits to be remapped"),
        ({"remap_failed": True}, "gpu_memory_faults", "could not be remapped"),
    ],
)
def test_gpu(but, tmp_path, fields, code, said):
    problem = only(but(gpu=fields), tmp_path)
    assert problem.code == code
    assert said in problem.what
    assert "GPU 0 (NVIDIA H200)" in problem.what


def test_only_the_device_in_use_matters_once_it_is_known(but, tmp_path):
    ill = but(gpu={"mig": True}).gpus[0]
    fine = but().gpus[0].model_copy(update={"index": 1})
    both = but(gpus=[ill.model_copy(update={"used": False}), fine])
    assert examine(both, results=tmp_path) == []
    unknown = but(gpus=[g.model_copy(update={"used": False}) for g in both.gpus])
    assert only(unknown, tmp_path).code == "gpu_mig"


# --- driver


@pytest.mark.parametrize(
    ("driver", "cuda", "too_old"),
    [
        ("579.99", "13.0", True),
        ("580.65.06", "13.0", False),
        ("515.65.01", "12.1", True),
        ("strange", "13.0", False),
    ],
)
def test_driver_too_old(but, tmp_path, driver, cuda, too_old):
    old = but(driver={"version": driver}, software={"torch_cuda": cuda, "cuda_usable": None})
    codes = [p.code for p in examine(old, results=tmp_path)]
    assert codes == (["driver_too_old"] if too_old else [])


@pytest.mark.parametrize(
    ("driver", "container", "code"),
    [
        (Driver(nvml_failure="Driver/library version mismatch"), None, "driver_mismatch"),
        (Driver(nvml_failure="Not Found", pci_devices=1), None, "driver_missing"),
        (Driver(nvml_failure="Not Found", pci_devices=1), "docker", "gpu_not_passed"),
        (Driver(nvml_failure="Not Found", kernel_module="550.1"), "docker", "gpu_not_passed"),
        (Driver(nvml_failure="Unknown Error", kernel_module="550.1"), None, "driver_broken"),
        (Driver(kernel_module="580.1", pci_devices=1, lost_gpus=1), "docker", "gpu_lost"),
    ],
)
def test_a_gpu_out_of_reach(but, cpu_only, tmp_path, driver, container, code):
    ill = but(cpu_only, driver=driver, container={"runtime": container})
    problems = [p for p in examine(ill, results=tmp_path) if p.code != "no_gpu"]
    assert [(p.severity, p.code) for p in problems] == [(Severity.ERROR, code)]


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({}, {"no_gpu": Severity.NOTE}),
        ({"run": {"device": "cuda"}}, {"no_gpu": Severity.ERROR}),
        ({"run": {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}}, {}),
        ({"software": {"triton": "3.9.0"}}, {"unpaired": Severity.NOTE}),
        ({"software": {"numpy": "2.4.0"}}, {"numpy_too_new": Severity.WARNING}),
        (
            {"software": {"torch": "2.4.1", "triton": "3.0.0", "numpy": "2.1.0"}},
            {"numpy_too_new": Severity.WARNING},
        ),
        ({"software": {"torch": "2.4.1", "triton": "3.0.0", "numpy": "1.26.4"}}, {}),
        ({"host": {"governor": "powersave"}}, {"cpu_powersave": Severity.WARNING}),
    ],
)
def test_without_a_gpu(but, cpu_only, tmp_path, parts, found):
    problems = examine(but(cpu_only, **parts), results=tmp_path)
    assert {p.code: p.severity for p in problems} == {"no_gpu": Severity.NOTE} | found
    assert all(p.remedy for p in problems)


# --- software


def unusable(why):
    return {"software": {"cuda_usable": False}, "absent": {"software.cuda_usable": why}}


WITHOUT_CUDA = {"torch": "2.11.0+cpu", "torch_cuda": None, "cuda_usable": False}
OLD_GPU = {"gpu": {"compute_capability": "7.5"}, "software": {"torch_architectures": ["sm_75"]}}


@pytest.mark.parametrize(
    ("parts", "code", "severity"),
    [
        (
            {"software": {"torch": None, "triton": None, "distributions": {}}},
            "torch_missing",
            Severity.ERROR,
        ),
        (
            {"software": {"torch": None}, "absent": {"software.torch": "OSError: libcudart.so"}},
            "torch_broken",
            Severity.ERROR,
        ),
        (
            {"software": {"triton": None, "distributions": {"torch": "2.11.0"}}},
            "triton_missing",
            Severity.WARNING,
        ),
        (
            {"software": {"triton": None}, "absent": {"software.triton": "ImportError: GLIBC"}},
            "triton_broken",
            Severity.ERROR,
        ),
        ({"software": WITHOUT_CUDA}, "torch_without_cuda", Severity.ERROR),
        (unusable("RuntimeError: out of memory"), "cuda_unusable", Severity.ERROR),
        (unusable("cudaGetDeviceCount(). Error 802: system"), "fabric_manager", Severity.ERROR),
        (
            unusable("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up"),
            "nvidia_uvm",
            Severity.ERROR,
        ),
        (unusable("RuntimeError: No CUDA GPUs are available"), "no_visible_gpu", Severity.ERROR),
        ({"driver": {"lost_gpus": 1}}, "gpu_lost", Severity.WARNING),
        ({"absent": {"gpus.nvml": "…"}}, "gpu_unwatched", Severity.WARNING),
        (
            {"driver": {"version": "535.104.05"}, "software": {"cuda_usable": False}},
            "driver_too_old",
            Severity.ERROR,
        ),
        (OLD_GPU, "gpu_too_old", Severity.WARNING),
    ],
)
def test_one_problem(but, tmp_path, parts, code, severity):
    problem = only(but(**parts), tmp_path)
    assert (problem.code, problem.severity) == (code, severity)
    assert problem.what and problem.remedy


@pytest.mark.parametrize(
    ("torch", "pinned", "triton", "unpaired"),
    [
        ("2.11.0+cu130", "3.6.0", "3.6.0", False),
        ("2.11.0+cu130", "3.6.0", "3.6.1", False),
        ("2.11.0+cu130", "3.6.0", "3.5.1", True),
        ("2.8.0", None, "3.4.0", False),
        ("2.8.0", None, "3.1.0", True),
        ("2.99.0", None, "3.1.0", False),  # torch is not in the table, and pins no Triton
        ("2.99.0", "9.0.0", "3.1.0", True),
        ("2.8.0", "3.9.0", "3.9.0", False),  # the pin of torch itself comes before the table
    ],
)
def test_unpaired(but, tmp_path, torch, pinned, triton, unpaired):
    pair = but(software={"triton": triton, "torch": torch, "pinned_triton": pinned})
    codes = [p.code for p in examine(pair, results=tmp_path)]
    assert codes == (["unpaired"] if unpaired else [])


@pytest.mark.parametrize(
    ("capability", "architectures", "supported"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.9", ["sm_80", "sm_90"], True),  # code of the same major version runs
        ("8.0", ["sm_86"], False),
        ("12.0", ["sm_80", "sm_90"], False),
        ("12.0", ["sm_90", "compute_90"], True),  # PTX is compiled when it is loaded
        ("9.0", ["sm_90a"], True),
        ("10.3", ["sm_100a"], False),
        ("10.3", ["sm_100f"], True),
        ("12.0", [], True),  # torch does not say
    ],
)
def test_architecture(but, tmp_path, capability, architectures, supported):
    codes = {"torch_architectures": architectures}
    machine = but(gpu={"compute_capability": capability}, software=codes)
    found = [p.code for p in examine(machine, results=tmp_path)]
    assert found == ([] if supported else ["architecture_unsupported"])


# --- host


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ram_available_bytes": GIB}, "low_memory"),
        ({"cgroup": Cgroup(memory_bytes=GIB)}, "low_memory"),
        ({"cgroup": Cgroup(cpus=1.5)}, "few_cpus"),
        ({"affinity_threads": 1}, "few_cpus"),
        ({"load_1m": 40.0}, "busy_host"),
        ({"compiler": False}, "no_compiler"),
        ({"python_headers": False}, "no_python_headers"),
        ({"loads_temporary": False}, "noexec_temporary_folder"),
        ({"governor": "powersave", "frequency_driver": "acpi-cpufreq"}, "cpu_powersave"),
        (
            {
                "governor": "powersave",
                "frequency_driver": "intel_pstate",
                "energy_preference": "power",
            },
            "cpu_powersave",
        ),
    ],
)
def test_host(but, tmp_path, fields, code):
    assert only(but(host=fields), tmp_path).code == code


def test_kernels_that_nothing_holds_are_told(but, tmp_path):
    loose = but().model_copy(update={"sandbox": "none: this kernel has no Landlock"})
    assert only(loose, tmp_path).code == "no_sandbox"
    held = loose.model_copy(update={"sandbox": "files, TCP, signals (Landlock 7)"})
    assert examine(held, results=tmp_path) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"gpu": {"sm_clock_mhz": 210}},
        {"gpu": {"power_limit_w": 750.0}},
        {"gpu": dict.fromkeys(("persistence", "mig", "ecc", "temperature_c"))},
        {"driver": {"version": "535.104.05"}},  # old, but CUDA works
        {"software": {"numpy": "2.4.0"}},  # only Triton's interpreter fails with it
        {
            "host": {
                "governor": "powersave",  # scales by demand all the same
                "frequency_driver": "intel_pstate",
                "energy_preference": "balance_performance",
            }
        },
        {"host": {"cgroup": Cgroup(cpus=8.0, memory_bytes=32 * GIB)}},
        {"host": {"ram_available_bytes": None, "affinity_threads": None, "load_1m": None}},
    ],
)
def test_a_machine_that_is_fine(but, tmp_path, parts):
    assert examine(but(**parts), results=tmp_path) == []


@pytest.mark.parametrize(
    ("free", "severity"), [(10 * GIB, None), (GIB, Severity.WARNING), (GIB // 8, Severity.ERROR)]
)
def test_low_disk(healthy, tmp_path, monkeypatch, free, severity):
    set_free_disk(monkeypatch, free)
    problems = examine(healthy, results=tmp_path)
    assert [p.severity for p in problems] == ([severity] if severity else [])
    assert all("256 MiB" in p.what for p in problems)


# --- variables


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("TRITON_INTERPRET", "1", None),  # workers that time kernels do not receive it
        ("CUDA_LAUNCH_BLOCKING", "1", Severity.ERROR),
        ("CUDA_LAUNCH_BLOCKING", "0", None),
        ("CUDA_VISIBLE_DEVICES", "", Severity.ERROR),
        ("CUDA_VISIBLE_DEVICES", "1", None),
        ("CUDA_INJECTION64_PATH", "/opt/profiler.so", Severity.WARNING),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", Severity.WARNING),
    ],
)
def test_variables(but, tmp_path, name, value, severity):
    machine = but(run={"variables": {name: value}})
    if severity is None:
        assert examine(machine, results=tmp_path) == []
        return
    problem = only(machine, tmp_path)
    assert (problem.severity, problem.code) == (severity, f"variable_{name.lower()}")
    assert problem.remedy == f"Run `unset {name}`."


# --- runs


def test_a_run_on_a_gpu_is_refused_for_an_error_only(but, tmp_path):
    on_gpu = {"device": "cuda"}
    ill = but(run={**on_gpu, "variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, gpu={"mig": True})
    with pytest.raises(EnvironmentRefused) as caught:
        refuse_unfit(ill, results=tmp_path)
    assert "unset CUDA_LAUNCH_BLOCKING" in caught.value.remedy
    warm = but(run=on_gpu, gpu={"persistence": False, "mig": True})
    assert {p.severity for p in refuse_unfit(warm, results=tmp_path)} == {Severity.WARNING}


def test_a_run_on_a_cpu_is_told_and_not_refused(but, cpu_only, tmp_path):
    hidden = but(cpu_only, run={"device": "cpu"}, driver={"pci_devices": 1})
    [problem] = refuse_unfit(hidden, results=tmp_path)
    assert problem.severity is Severity.ERROR


def test_a_full_disk_refuses_any_run(but, cpu_only, tmp_path, monkeypatch):
    set_free_disk(monkeypatch, 300 << 10)
    with pytest.raises(EnvironmentRefused, match="Only 0 MiB of disk"):
        refuse_unfit(but(cpu_only, run={"device": "cpu"}), results=tmp_path)


def test_a_host_whose_gpu_cannot_be_used_is_not_measured_on_its_cpu(monkeypatch):
    """The device `auto` is then refused. The device `cpu` is still accepted."""
    monkeypatch.setattr("nsabench.machine.environment.nvml.Device.list_all", list)
    driver = Driver()
    monkeypatch.setattr("nsabench.machine.doctor.gpu.read_driver", lambda: driver)
    assert choose_device("auto") == "cpu"
    driver = Driver(nvml_failure="Unknown Error", kernel_module="550.1", pci_devices=1)
    with pytest.raises(EnvironmentRefused, match=r"does not answer|does not see it") as refused:
        choose_device("auto")
    assert "`--device cpu`" in refused.value.remedy
    assert choose_device("cpu") == "cpu"
