"""How large the L2 of a device is."""

from __future__ import annotations

from typing import Any

LARGEST = 128 << 20  # no device of a data sheet has more, and flushing too much only takes longer


def l2_bytes(properties: Any) -> int:
    """Bytes of the L2, of what `torch.cuda.get_device_properties` says.

    torch says it from 2.5 on; before, the device's data sheet does; where there is none, `LARGEST`.
    """
    size: int | None = getattr(properties, "L2_cache_size", None)
    if size is not None:
        return size
    from nsabench.machine.datasheet import known  # only where torch is that old

    sheet = known(properties.name)
    return sheet.l2_mib << 20 if sheet else LARGEST
