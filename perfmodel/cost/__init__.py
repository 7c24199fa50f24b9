"""Cost laws: the only room that knows time.

`cost(op, machine, compiled=...)` dispatches on the record type of `perfmodel.ops`.
"""

from __future__ import annotations

from perfmodel.cost.attention import cost_attention
from perfmodel.cost.collective import cost_collective
from perfmodel.cost.conv import cost_conv
from perfmodel.cost.fits import Law, NamedPrior, Parameter
from perfmodel.cost.gemm import cost_gemm
from perfmodel.cost.host import cost_host
from perfmodel.cost.machine import Machine, Rates
from perfmodel.cost.media import cost_media
from perfmodel.cost.pointwise import cost_pointwise
from perfmodel.cost.result import BOUNDS, Costed
from perfmodel.cost.transfer import cost_transfer
from perfmodel.ops import (
    Attention,
    Collective,
    Conv,
    Gemm,
    HostWork,
    Media,
    Op,
    Pointwise,
    Transfer,
)

__all__ = ["BOUNDS", "Costed", "Law", "Machine", "NamedPrior", "Parameter", "Rates", "cost"]


def cost(op: Op, machine: Machine, *, compiled: bool = True, sustained: bool = True) -> Costed:
    """Time of one execution of `op` on `machine`, for all its configurations at once.

    Args:
        op: operator record; dimensions may be int64 arrays that broadcast.
        machine: device, links, laws and engine terms.
        compiled: fused traffic and launches, or those of eager code.
        sustained: apply the engine's sustained fractions to the burst rates of the laws.

    Returns:
        Seconds each (exactly 0 where count is 0 or the group has one rank), the roof, what
        bounds it, work and provenance.  Launch time on the host is not in it.
    """
    match op:
        case Gemm():
            return cost_gemm(op, machine, sustained=sustained)
        case Attention():
            return cost_attention(op, machine, sustained=sustained)
        case Conv():
            return cost_conv(op, machine, sustained=sustained)
        case Pointwise():
            return cost_pointwise(op, machine, compiled=compiled, sustained=sustained)
        case Collective():
            return cost_collective(op, machine)
        case Transfer():
            return cost_transfer(op, machine)
        case Media():
            return cost_media(op, machine)
        case HostWork():
            return cost_host(op, machine)
    raise TypeError(f"no cost law for {type(op).__name__}")
