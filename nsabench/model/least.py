"""The least compulsory work of the cases that a control is for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class LeastWork(BaseModel):
    """Nothing, if nothing is given. A trick that answers from memory gains only where computing
    takes any device long beside looking the answer up."""

    model_config = ConfigDict(frozen=True)

    bytes_min: int = 0
    flops: int = 0
    flops_per_byte: int = 0

    def met(self, bytes_min: int, flops: int) -> bool:
        """Whether a case of this compulsory work is one of them."""
        return (
            bytes_min >= self.bytes_min
            and flops >= self.flops
            and flops >= self.flops_per_byte * bytes_min
        )
