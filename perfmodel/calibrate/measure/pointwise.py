"""Memory-bound operators as torch runs them: single kernels, unfused sequences, compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from perfmodel.calibrate.cases import PointwiseCase
from perfmodel.calibrate.measure.device import Call, Device
from perfmodel.calibrate.measure.timing import buffer_sets

_EPSILON = 1e-6
_HEAD_DIM = 64

Operator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(x[rows, width], y[rows, width], vector[width], out[rows, width]) to a result."""


def _copy(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return out.copy_(x)


def _add(x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.add(x, y, out=out)


def _silu(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return F.silu(x)


def _gelu(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _layer_norm(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), vector, vector)


def _transpose(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """A layout change: what channels-first to channels-last does to a map."""
    return out.view(x.shape[1], x.shape[0]).copy_(x.t())


def _rms_norm(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    variance = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(variance + _EPSILON) * vector


def _channel_norm(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Norm over channels that lie `rows` elements apart (a channels-first map)."""
    return F.normalize(x.view(x.shape[1], x.shape[0]), dim=0)


def _rope(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Rotary embedding of heads of 64: ``x*cos + rotate_half(x)*sin``."""
    heads = x.view(x.shape[0], -1, _HEAD_DIM)
    angle = vector[:_HEAD_DIM]
    left, right = heads.chunk(2, dim=-1)
    return heads * angle + torch.cat((-right, left), dim=-1) * angle


def _gated_silu(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return F.silu(x) * y


def _gated_residual(
    x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return x + y * vector


OPERATORS: dict[str, Operator] = {
    "copy": _copy,
    "add": _add,
    "silu": _silu,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "transpose": _transpose,
    "rms_norm": _rms_norm,
    "channel_norm": _channel_norm,
    "rope": _rope,
    "gated_silu": _gated_silu,
    "gated_residual": _gated_residual,
}
"""The same names as `presets.POINTWISE`, which counts their passes and launches."""


def build(case: PointwiseCase, device: Device) -> list[Call]:
    """Calls for `case`; the compiled form is compiled for exactly this shape.

    Raises:
        NotImplementedError: an operator that is not in `OPERATORS`.
    """
    if case.what not in OPERATORS:
        raise NotImplementedError(f"no pointwise operator {case.what}")
    run = OPERATORS[case.what]
    if case.kernel.startswith("compile."):
        torch._dynamo.reset()
        run = torch.compile(run, dynamic=False)
    dtype = device.dtype(case.dtype)
    shape = (case.rows, case.width)
    return [
        partial(
            run,
            device.random(*shape, dtype=dtype),
            device.random(*shape, dtype=dtype),
            device.random(case.width, dtype=dtype),
            torch.empty(shape, device=device.torch_device, dtype=dtype),
        )
        for _ in range(buffer_sets(device, case.memory_bytes))
    ]
