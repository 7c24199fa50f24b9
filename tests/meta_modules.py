"""Modules on torch's meta device: FLOP, bytes and kernels of a forward that computes nothing.

On that device torch would write attention out as two batched products, so the call is intercepted
and counted; helpers that the device lacks are stood in for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from perfmodel.ops import Op, Pointwise
from perfmodel.spec.model import ModelSpec

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

PRODUCTS = {"aten.mm", "aten.addmm", "aten.bmm"}
KNOWN = {*PRODUCTS, "aten.convolution"}
VIEWS = (
    "view _unsafe_view expand permute transpose t unsqueeze squeeze slice select split unbind "
    "detach alias as_strided split_with_sizes unfold view_as_complex view_as_real"
)
MAKERS = (
    "empty empty_like new_empty zeros ones full arange zeros_like ones_like new_zeros linspace "
    "scalar_tensor lift_fresh _local_scalar_dense"
)
NO_KERNEL = frozenset((*VIEWS.split(), *MAKERS.split()))
COUNTED = frozenset(["mm", "addmm", "bmm", "baddbmm", "convolution"])


def tensor(*size: int, dtype: Any = None) -> Any:
    return torch.zeros(size, device="meta", dtype=dtype or torch.bfloat16)


def ids(*size: int) -> Any:
    return torch.zeros(size, device="meta", dtype=torch.int64)


def table(*size: int) -> Any:
    return (tensor(*size, dtype=torch.float32),) * 2


class Kernels(TorchDispatchMode):
    """Bytes (inputs read plus outputs written) and number of all kernels that no FLOP counts."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.calls = 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in NO_KERNEL and name not in COUNTED:
            self.moved += sum(map(stored_bytes, tree_leaves((args, kwargs, result))))
            self.calls += 1
        return result


def stored_bytes(leaf: Any) -> int:
    """Bytes of a tensor, dimensions that are only repeated left out."""
    if not torch.is_tensor(leaf):
        return 0
    sides = [size for size, step in zip(leaf.shape, leaf.stride(), strict=True) if step]
    return int(np.prod(sides, dtype=np.int64)) * leaf.element_size()


class _Resize:
    """Stands in for torchvision, which only resizes the padding mask."""

    class InterpolationMode:
        NEAREST = 0

    class functional:
        @staticmethod
        def resize(mask: Any, size: list[int], interpolation: Any = None) -> Any:
            return tensor(*mask.shape[:2], *size)


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """FLOP of every attention call; helpers that the meta device lacks are stood in for."""
    from diffusers.models.controlnets import controlnet_cosmos
    from diffusers.models.transformers import transformer_cosmos

    found: list[float] = []

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        batch, heads, rows, width = query.shape
        found.append(4.0 * batch * heads * rows * key.shape[2] * width)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))

    def rms_norm(states: Any, *args: Any, **kwargs: Any) -> Any:
        # On a GPU one kernel, which reads and writes the map once; on meta tensors six.
        return states * 1

    @contextlib.contextmanager
    def autocast(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(torch.nn.functional, "rms_norm", rms_norm)
    monkeypatch.setattr(torch, "autocast", autocast)
    monkeypatch.setattr(torch, "nonzero", lambda mask, **kwargs: ids(mask.numel(), 1))
    for module in (transformer_cosmos, controlnet_cosmos):
        monkeypatch.setattr(module, "transforms", _Resize, raising=False)
    return found


def shallow(model: ModelSpec, layers: int) -> ModelSpec:
    dims = model.transformer.model_copy(update={"layers": layers})
    return model.model_copy(update={"transformer": dims})


def eager(ops: tuple[Op, ...]) -> tuple[float, float]:
    moved = launched = 0.0
    for op in ops:
        if isinstance(op, Pointwise):
            each = op.bytes_moved if op.eager_bytes is None else op.eager_bytes
            launches = op.launches if op.eager_launches is None else op.eager_launches
            moved += float(np.sum(np.asarray(each) * op.count))
            launched += launches * float(np.max(op.count))
    return moved, launched


def run(built: Any, inputs: dict[str, Any], calls: list[float]) -> tuple[dict[str, float], Kernels]:
    kernels = Kernels()
    calls.clear()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, kernels:
        built(**inputs, return_dict=False)
    found = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    assert set(found) <= KNOWN
    assert set(found) & PRODUCTS
    gemm = sum(count for op, count in found.items() if op in PRODUCTS)
    conv = found.get("aten.convolution", 0)
    return {"gemm": gemm, "attention": sum(calls), "conv": conv}, kernels
