"""Run a VAE module on torch's meta device and count what it computes, moves and keeps alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


@dataclass
class Work:
    """What one run of a module does.

    Attributes:
        flops: by kind; on meta tensors attention is its two batched products, uncausal.
        params: of the half that ran, 1x1 convolution at the latent included.
        peak_bytes: most bytes alive, the parameters and the input left out, two converted copies
            of a convolution's input and output included.
        output: shape of the sample or of the mean.
    """

    flops: dict[str, float]
    params: int
    peak_bytes: int
    output: tuple[int, ...]


class Live(TorchDispatchMode):
    """Bytes of all tensors that are alive, largest at any call."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and look at what lives after it."""
        result = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(result) if torch.is_tensor(x)]
        inputs = {x.untyped_storage()._cdata for x in tree_leaves(args) if torch.is_tensor(x)}
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in inputs:
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        total = sum(size for _, size in self.alive.values())
        if func._overloadpacket.__name__ == "convolution":
            total += sum(x.numel() * x.element_size() for x in (args[0], *made))
        self.peak_bytes = max(self.peak_bytes, total)
        return result


def build(kind: Any, **config: Any) -> torch.nn.Module:
    """An instance on the meta device in bf16."""
    with torch.device("meta"):
        return kind(**config).to(torch.bfloat16).eval()


def run(
    module: torch.nn.Module,
    part: str,
    shape: tuple[int, ...],
    call: Callable[[torch.Tensor], Any] | None = None,
) -> Work:
    """Encode or decode an input of `shape`.

    Args:
        module: from `build`.
        part: ``encode`` or ``decode``.
        shape: of the input.
        call: runs the module on the input; None: the method named `part`.
    """
    source = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    counter, live = FlopCounterMode(display=False), Live()
    with torch.no_grad(), counter, live:
        result = (call or getattr(module, part))(source)
    found: Counter[str] = Counter()
    for op, count in counter.get_flop_counts()["Global"].items():
        found[op.__name__.split(".")[0]] += count
    assert set(found) <= {"convolution", *PRODUCTS}, found
    if part == "decode":
        output = result.sample
    else:
        output = result.latent if hasattr(result, "latent") else result.latent_dist.mean
    around = {"encode": "quant_conv", "decode": "post_quant_conv"}[part]
    halves = [getattr(module, f"{part}r"), getattr(module, around, None)]
    return Work(
        flops={
            "conv": found["convolution"],
            "product": sum(count for name, count in found.items() if name != "convolution"),
        },
        params=sum(p.numel() for half in halves if half is not None for p in half.parameters()),
        peak_bytes=live.peak_bytes,
        output=tuple(output.shape),
    )
