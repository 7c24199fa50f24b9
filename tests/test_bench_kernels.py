"""What the microbenchmarks really run: work, traffic and numbers against torch's own counters."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import AttentionCase, ConvCase, GemmCase, HostCase, QuantizeCase
from perfmodel.calibrate.measure import host, kernels, media, pointwise
from perfmodel.calibrate.measure.device import Device, Unsupported, open_device


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # threads that share busy cores wait for the scheduler at every barrier
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def counted_flops(call: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "case",
    [
        GemmCase("fp32", "", 24, 40, 16),
        ConvCase("fp32", "torch.conv3d", 6, 4, 3, 3, 3, 1, 1, 1, 1, 2, 5, 7),
        ConvCase("fp32", "torch.conv3d.channels_last", 6, 4, 3, 1, 1, 2, 1, 1, 1, 3, 5, 7),
        ConvCase("fp32", "torch.conv2d", 6, 4, 1, 3, 3, 1, 2, 2, 2, 2, 5, 7),
        AttentionCase("fp32", "sdpa_math", False, 2, 24, 12, 4, 4, 8),
    ],
    ids=lambda case: f"{case.op}-{case.kernel_name}",
)
def test_a_call_does_the_work_of_its_case(case: Any, cpu: Device) -> None:
    assert counted_flops(kernels.build(case, cpu)[0]) == case.flops


class Traffic(TorchDispatchMode):
    """Elements read and written and kernels launched, views excluded, by full-size tensors."""

    def __init__(self, full: int) -> None:
        super().__init__()
        self.full, self.passes, self.launches = full, 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        ):
            return out  # a view
        if "empty" in str(func) or "native_layer_norm" in str(func):
            self._count([args[0], out[0]] if "layer_norm" in str(func) else [])
            return out
        flat = [a for arg in args for a in (arg if isinstance(arg, list | tuple) else [arg])]
        written = [] if "copy_" in str(func) or "out" in (kwargs or {}) else [out]
        extra = [v for v in (kwargs or {}).values() if isinstance(v, torch.Tensor)]
        self._count([t for t in (*flat, *written, *extra) if isinstance(t, torch.Tensor)])
        return out

    def _count(self, tensors: list[torch.Tensor]) -> None:
        self.launches += bool(tensors)
        # an expanded tensor is read from the few elements that exist
        stored = [t.untyped_storage().nbytes() // t.element_size() for t in tensors]
        sizes = [min(t.numel(), n) for t, n in zip(tensors, stored, strict=True)]
        sizes = [n for n in sizes if n >= self.full // 2]
        self.passes += sum(sizes) / self.full


@pytest.mark.parametrize("what", sorted(presets.POINTWISE))
def test_pointwise_traffic_is_that_of_the_kernels_that_run(what: str, cpu: Device) -> None:
    case = presets.pointwise_case(what, 96, 128, "fp32")
    (call, *_) = pointwise.build(case, cpu)
    with Traffic(96 * 128) as traffic, torch.inference_mode():
        call()
    assert traffic.passes * 96 * 128 * 4 == pytest.approx(case.bytes_moved, rel=0.02)
    assert abs(traffic.launches - case.launches) <= 2


def test_every_pointwise_name_has_a_kernel() -> None:
    assert set(pointwise.OPERATORS) == set(presets.POINTWISE)


def test_attention_expands_to_the_backends_of_the_device(cpu: Device) -> None:
    case = AttentionCase("bf16", "", False, 1, 64, 64, 4, 2, 32)
    named = kernels.expand(case, cpu)
    assert [one.kernel for one in named] == ["sdpa_flash", "sdpa_math"]
    outputs = [kernels.build(one, cpu)[0]() for one in named]
    assert outputs[0].shape == (1, 4, 64, 32)
    # the same seed makes the same tensors: both backends compute the same attention
    assert torch.allclose(outputs[0].float(), outputs[1].float(), atol=3e-2)


def test_a_temporal_kernel_decides_between_two_and_three_dimensions(cpu: Device) -> None:
    flat = ConvCase("bf16", "", 4, 4, 1, 3, 3, 1, 1, 1, 1, 2, 5, 7)
    deep = ConvCase("bf16", "", 4, 4, 3, 1, 1, 1, 1, 1, 1, 2, 5, 7)
    names = [one.kernel for case in (flat, deep) for one in kernels.expand(case, cpu)]
    both = ["torch.conv2d", "torch.conv3d"]
    assert names == [name + suffix for name in both for suffix in ("", ".channels_last")]


def test_causal_attention_of_unequal_lengths_is_refused(cpu: Device) -> None:
    with pytest.raises(Unsupported, match="unequal"):
        kernels.build(AttentionCase("bf16", "sdpa_flash", True, 1, 8, 16, 2, 2, 8), cpu)


def test_fp8_products_are_refused_where_the_device_has_none(cpu: Device) -> None:
    with pytest.raises(Unsupported, match="fp8"):
        kernels.build(GemmCase("fp8", kernels.SCALED_MM, 32, 32, 32), cpu)


def test_buffers_are_distinct_and_not_zero(cpu: Device) -> None:
    calls = kernels.build(GemmCase("fp32", "", 16, 16, 16), cpu)
    pointers = {call.args[0].data_ptr() for call in calls}
    assert len(pointers) == len(calls) > 1
    data = calls[0].args[0]
    assert 0.5 < float(data.std()) < 1.5


def test_quantisation_maps_to_eight_bit(cpu: Device) -> None:
    out = kernels.build(QuantizeCase("scale_matrix", "eager", "fp8", 8, 16), cpu)[0]()
    assert out.element_size() == 1
    scale = kernels.build(QuantizeCase("compute_scale", "eager", "fp8", 8, 16), cpu)[0]()
    assert scale.numel() == 1


@pytest.mark.parametrize("kernel", ["pointwise", "linear", "block"])
def test_eager_launches_cost_less_than_a_millisecond_each(kernel: str, cpu: Device) -> None:
    timing = host.measure(HostCase(kernel, "eager", 20), cpu, 0.02)
    assert 1e-8 < timing.median_s < 1e-3
    with pytest.raises(Unsupported, match="graphs"):
        host.measure(HostCase(kernel, "graph", 20), cpu, 0.02)


def test_encoded_clips_can_be_read_back() -> None:
    av = pytest.importorskip("av")
    import io

    case = presets.media_case(64, 48, 7)
    frames = media.moving_texture(64, 48, 7)
    assert not np.array_equal(frames[0], frames[1])
    data = media.encode(av, case, frames)
    with av.open(io.BytesIO(data)) as container:
        decoded = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    assert len(decoded) == 7
    assert decoded[0].shape == (48, 64, 3)
    assert float(np.abs(decoded[0].astype(float) - frames[0]).mean()) < 20


def test_a_clip_is_encoded_until_the_median_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    small, large = (media.measure(presets.media_case(64, 48, n), 0.01) for n in (3, 90))
    assert small.repeats >= 3
    assert small.median_s < large.median_s
    case = dataclasses.replace(presets.media_case(64, 48, 3), kernel="no_such_encoder")
    with pytest.raises(Unsupported, match="no encoder no_such_encoder"):
        media.measure(case, 0.01)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(Unsupported, match="needs PyAV: pip install"):
        media.measure(case, 0.01)
