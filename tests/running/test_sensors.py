"""The supervisor reads the sensors itself, where no worker can forge them."""

import pynvml
import pytest

from nsabench.machine.environment import nvml
from nsabench.machine.environment.nvml import ConditionMonitor, Reading


class Fake:
    """A device that is throttled once it is read for the third time."""

    def __init__(self):
        self.times = 0

    def read(self):
        self.times += 1
        reasons = ("hw_slowdown",) if self.times > 2 else ()
        return Reading(1000 * self.times, 2000, 50 + self.times, 300.0, reasons)

    def process_ids(self):
        return {11, 12, 13}


@pytest.fixture
def device(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(nvml, "INTERVAL_S", 1e-3)
    yield fake


def reads(device, count):
    wanted = device.times + count
    while device.times < wanted:
        pass


def test_the_supervisor_reads_the_sensors_itself(device):
    """A worker could hide throttling and other processes."""
    with ConditionMonitor(device) as monitor:
        reads(device, 5)
    seen = monitor.summary({11, 12})
    assert seen.clock_event_reasons == ["hw_slowdown"]
    assert seen.competing_processes == 1, "13: the others are our own workers"
    assert seen.sm_clock_mhz_min == 1000 and (seen.sm_clock_mhz_max or 0) >= 5000
    assert (seen.temperature_c_max or 0) > 50 and seen.power_w_max == 300.0


@pytest.mark.parametrize("phase", ["parity", "precheck"])
def test_what_was_before_it_was_timed_does_not_count(device, phase):
    """In the phases before the timing, the device has other clocks."""
    with ConditionMonitor(device) as monitor:
        reads(device, 3)
        monitor.at_phase(phase)
        before = device.times
        monitor.at_phase("timing")
        reads(device, 3)
        monitor.at_phase("timing")  # a worker cannot have readings forgotten
    assert 1000 * (before - 1) <= (monitor.summary().sm_clock_mhz_min or 0) <= 1000 * (before + 2)


def test_what_is_read_during_probes_does_not_count(device):
    with ConditionMonitor(device) as monitor:
        monitor.at_phase("timing")
        reads(device, 2)
        monitor.at_phase("probes")
        before = device.times
        reads(device, 3)
        monitor.at_phase("probes")
    assert 1000 <= (monitor.summary().sm_clock_mhz_max or 0) <= 1000 * (before + 2)


@pytest.mark.parametrize(
    ("visible", "order", "names", "found"),
    [
        (None, None, ["H200", "H200"], 0),
        ("1,0", None, ["H200", "H200"], 1),
        ("GPU-of-1", None, ["H200", "H100"], 1),
        ("1", None, ["H200", "H100"], None),  # the order of devices is unknown
        ("1", "PCI_BUS_ID", ["H200", "H100"], 1),
        ("", None, ["H200"], None),
        ("MIG-1", None, ["H200"], None),
    ],
)
def test_the_device_that_a_process_sees_first(monkeypatch, visible, order, names, found):
    def by_uuid(uuid):
        if not uuid.startswith("GPU-of-"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return int(uuid[-1])

    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(names))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: names[handle])
    device = nvml.Device.visible()
    assert (device.handle if device else None) == found
