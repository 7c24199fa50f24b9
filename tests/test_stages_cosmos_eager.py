"""The original Cosmos-Predict2 block against its kernels, counted on torch's meta device."""

from __future__ import annotations

from typing import Any

import pytest
from meta_modules import Kernels, stored_bytes, tensor

from perfmodel import catalog
from perfmodel.api.predict import predict
from perfmodel.api.session import open_session
from perfmodel.catalog import load_model
from perfmodel.ops import Gemm, Pointwise
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import family
from perfmodel.stages.base import Traits

torch = pytest.importorskip("torch")
functional = torch.nn.functional

FRAMES, ROWS, COLUMNS, TEXT = 4, 6, 8, 512
OWN = Traits(closing_steps=1, modulation_per_frame=True, fused_norm_rope=True)


class Broadcasts(Kernels):
    """Bytes of kernels that read a vector of each frame beside an element of each token."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        read = [leaf for leaf in args if torch.is_tensor(leaf)]
        if len({leaf.numel() for leaf in read}) > 1 and "mm" not in func.overloadpacket.__name__:
            self.scattered += sum(map(stored_bytes, (*read, result)))
        return result

    scattered = 0.0


def one_kernel(x: Any) -> Any:
    """Stands in for a kernel of TransformerEngine: reads and writes once."""
    return x.neg()


def modulation(width: int) -> tuple[Any, ...]:
    """Shift, scale and gate of each frame: two products and a shared part between three kernels."""
    low = functional.silu(tensor(1, FRAMES, width)) @ tensor(width, 256) @ tensor(256, 3 * width)
    joined = low + tensor(1, FRAMES, 3 * width)
    return tuple(part[:, :, None, None] for part in joined.chunk(3, dim=-1))


def block(spec: ModelSpec) -> None:
    """One block as the package runs it, kernel by kernel, without its attention kernels."""
    width = spec.transformer.hidden
    x = tensor(1, FRAMES, ROWS, COLUMNS, width)

    def normed(x: Any, shift: Any, scale: Any) -> Any:
        return functional.layer_norm(x, (width,)) * (1 + scale) + shift

    def product(x: Any, wide: int) -> Any:
        return x @ tensor(x.shape[-1], wide)

    shift, scale, gate = modulation(width)
    q, k, v = (product(normed_x, width) for normed_x in [normed(x, shift, scale)] * 3)
    for part in (q, k):
        one_kernel(one_kernel(part))
    x = x + gate * product(v, width)
    shift, scale, gate = modulation(width)
    q = one_kernel(product(normed(x, shift, scale), width))
    text = tensor(1, TEXT, spec.transformer.text_stream_width)
    one_kernel(product(text, width)), product(text, width)
    x = product(q, width) * gate + x
    shift, scale, gate = modulation(width)
    wide = functional.gelu(product(normed(x, shift, scale), spec.transformer.ffn))
    x = x + gate * product(wide, width)


def test_the_original_block_runs_its_modulation_gates_and_residuals_kernel_by_kernel() -> None:
    model = load_model("cosmos-predict2-2b-v2w")
    asked = Workload(task="i2v", width=16 * COLUMNS, height=16 * ROWS, frames=4 * FRAMES - 3)
    shape = family(model).shape(model, asked, OWN)
    assert shape.tokens == FRAMES * ROWS * COLUMNS
    ops = family(model).denoise(model, shape, OWN).per_forward
    blocks = model.transformer.layers
    mine = [op for op in ops if isinstance(op, Pointwise) and op.count == blocks]
    with Broadcasts() as counted:
        block(model)
    assert sum(op.eager_launches for op in mine) == counted.calls == 31
    # Shift, scale and gate, a few vectors a frame, are left out of the model's bytes.
    assert sum(float(op.eager_bytes) for op in mine) == pytest.approx(counted.moved, rel=0.02)
    scattered = sum(float(op.eager_bytes) * op.scattered_frac for op in mine)
    assert scattered == pytest.approx(counted.scattered, rel=0.02)
    products = sum(op.count for op in ops if isinstance(op, Gemm) and op.count >= blocks)
    assert products == blocks * (6 + 3 + 1 + 4 + 2)


def test_the_original_program_is_eager_with_an_encoder_in_fp32() -> None:
    job = Workload(model="cosmos-predict2-2b-v2w", task="i2v")
    behaviour = open_session(job, catalog.parse_gpus("1xB200"), engine="cosmos-official").behaviour
    assert not behaviour.compiled
    assert not behaviour.fused_blocks
    assert behaviour.traits.fused_norm_rope
    assert behaviour.traits.text_bits == 32


def test_the_original_program_holds_four_bytes_a_parameter_of_its_encoder() -> None:
    job = Workload(model="cosmos-predict2-2b-t2i")
    answer = predict(job, "1xH100", engine="cosmos-official")
    t5_11b_encoder = 4_864_791_552  # transformers' T5EncoderModel of google-t5/t5-11b
    held = answer.prediction.memory_parts_gib["text_encode"].text_encoder
    assert held == pytest.approx(4 * t5_11b_encoder / 2**30, rel=1e-3)
