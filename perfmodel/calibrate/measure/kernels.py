"""Matrix products, attention, convolution and quantisation: a case becomes calls on buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, singledispatch

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfmodel.calibrate.cases import (
    AttentionCase,
    Case,
    ConvCase,
    GemmCase,
    PointwiseCase,
    QuantizeCase,
)
from perfmodel.calibrate.measure import pointwise
from perfmodel.calibrate.measure.device import Call, Device, Unsupported
from perfmodel.calibrate.measure.timing import buffer_sets

LINEAR = "torch.nn.functional.linear"
SCALED_MM = "torch._scaled_mm"
_FP8_MAX = 448.0
_FP8_MULTIPLE = 16

_SDPA = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
_SDPA_OF = {
    "cuda": ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient"),
    "npu": ("sdpa_default",),
    "cpu": ("sdpa_flash", "sdpa_math"),
}
"""Backends to try by device; torch.npu replaces the whole function, so it has no choice."""


def first_choice(device: Device) -> str:
    """The attention kernel that `scaled_dot_product_attention` tries first on `device`."""
    return _SDPA_OF[device.kind][0]


@singledispatch
def expand(case: Case, device: Device) -> list[Case]:
    """`case` once for each kernel that the device may have for it (`kernel` filled in)."""
    del device
    return [case]


@expand.register
def _(case: GemmCase, device: Device) -> list[Case]:
    del device
    if case.kernel:
        return [case]
    return [replace(case, kernel=SCALED_MM if case.dtype == "fp8" else LINEAR)]


@expand.register
def _(case: AttentionCase, device: Device) -> list[Case]:
    return [case] if case.kernel else [replace(case, kernel=name) for name in _SDPA_OF[device.kind]]


@expand.register
def _(case: ConvCase, device: Device) -> list[Case]:
    if case.kernel:
        return [case]
    base = "torch.conv2d" if case.kt == 1 else "torch.conv3d"
    formats = ("",) if device.kind == "npu" else ("", ".channels_last")
    return [replace(case, kernel=base + suffix) for suffix in formats]


@singledispatch
def build(case: Case, device: Device) -> list[Call]:
    """Calls that do the work of `case`, each on buffers of its own (rotated by the timer).

    Raises:
        Unsupported, NotImplementedError, RuntimeError: the device has no such kernel.
    """
    raise NotImplementedError(f"no kernel for {case.op} on {device.kind}")


@build.register
def _(case: GemmCase, device: Device) -> list[Call]:
    sets = range(buffer_sets(device, case.memory_bytes))
    if case.dtype == "fp8":
        return [_scaled_mm(case, device) for _ in sets]
    dtype = device.dtype(case.dtype)
    return [
        partial(
            F.linear,
            device.random(case.m, case.k, dtype=dtype),
            device.random(case.n, case.k, dtype=dtype),
        )
        for _ in sets
    ]


def _scaled_mm(case: GemmCase, device: Device) -> Call:
    """A per-tensor scaled 8-bit product with 16-bit output.

    Sums stay in the tensor cores (``use_fast_accum``, which Hopper alone distinguishes), as in the
    CUTLASS kernels of vLLM and torchao's default configuration that engines serve with.
    """
    if not device.has_fp8:
        raise Unsupported(f"fp8 needs a device with 8-bit matrix units; {device.name} has none")
    if case.n % _FP8_MULTIPLE or case.k % _FP8_MULTIPLE:
        raise Unsupported(f"torch._scaled_mm needs n and k in multiples of {_FP8_MULTIPLE}")
    left = device.random(case.m, case.k, dtype=torch.bfloat16).to(device.fp8)
    right = device.random(case.n, case.k, dtype=torch.bfloat16).to(device.fp8).t()
    scale = torch.ones((), device=device.torch_device)
    return partial(
        torch._scaled_mm,
        left,
        right,
        scale_a=scale,
        scale_b=scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


@build.register
def _(case: AttentionCase, device: Device) -> list[Call]:
    dtype = device.dtype(case.dtype)
    if case.causal and case.seq_q != case.seq_kv:
        raise Unsupported("causal attention of unequal lengths has no agreed alignment")
    grouped = case.num_heads != case.num_kv_heads
    calls: list[Call] = []
    for _ in range(buffer_sets(device, case.memory_bytes)):
        shapes = ((case.seq_q, case.num_heads), *[(case.seq_kv, case.num_kv_heads)] * 2)
        tensors = [
            device.random(case.batch, length, heads, case.head_dim, dtype=dtype).transpose(1, 2)
            for length, heads in shapes
        ]
        calls.append(partial(_sdpa, case.kernel, tensors, case.causal, grouped))
    return calls


def _sdpa(
    kernel: str, tensors: Sequence[torch.Tensor], causal: bool, grouped: bool
) -> torch.Tensor:
    """SDPA of ``[batch, heads, tokens, head_dim]`` views by one backend alone."""
    query, key, value = tensors
    options = {"enable_gqa": True} if grouped else {}
    backend = _SDPA.get(kernel)
    with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, **options)


@build.register
def _(case: ConvCase, device: Device) -> list[Call]:
    dtype = device.dtype(case.dtype)
    return [_conv(case, device, dtype) for _ in range(buffer_sets(device, case.memory_bytes))]


def _conv(case: ConvCase, device: Device, dtype: torch.dtype) -> Call:
    """One convolution with a bias; a 2-D one over ``batch*out_t`` images where kt is 1."""
    frames, rows, cols = case.in_shape
    taps = (case.kt, case.kh, case.kw)
    strides = (case.stride_t, case.stride_h, case.stride_w)
    last = case.kernel.endswith(".channels_last")
    bias = device.random(case.out_channels, dtype=dtype)
    if case.kt == 1:
        if case.stride_t != 1:
            raise Unsupported("a temporal stride needs a temporal kernel")
        images = (case.batch * case.out_t, case.in_channels, rows, cols)
        order = torch.channels_last if last else torch.contiguous_format
        data = device.random(*images, dtype=dtype).contiguous(memory_format=order)
        shape = (case.out_channels, case.in_channels, *taps[1:])
        weight = device.random(*shape, dtype=dtype).contiguous(memory_format=order)
        return partial(F.conv2d, data, weight, bias, strides[1:])
    order = torch.channels_last_3d if last else torch.contiguous_format
    maps = (case.batch, case.in_channels, frames, rows, cols)
    data = device.random(*maps, dtype=dtype).contiguous(memory_format=order)
    shape3 = (case.out_channels, case.in_channels, *taps)
    weight = device.random(*shape3, dtype=dtype).contiguous(memory_format=order)
    return partial(F.conv3d, data, weight, bias, strides)


@build.register
def _(case: PointwiseCase, device: Device) -> list[Call]:
    return pointwise.build(case, device)


@build.register
def _(case: QuantizeCase, device: Device) -> list[Call]:
    run = _absolute_maximum if case.what == "compute_scale" else partial(_to, device.fp8)
    return [
        partial(run, device.random(case.m, case.k, dtype=torch.bfloat16))
        for _ in range(buffer_sets(device, case.memory_bytes))
    ]


def _absolute_maximum(values: torch.Tensor) -> torch.Tensor:
    return values.abs().amax() / _FP8_MAX


def _to(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    return (values * 0.5).to(dtype)
