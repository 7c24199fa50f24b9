"""The text refiner of HunyuanVideo: two blocks over the padded text, run at every step.

They depend on the timestep, so nothing is cached; engines replicate them over all groups.
Source: diffusers 0.42.1 ``HunyuanVideoTokenRefiner`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Attention, Ints, Op, Role, Rows
from perfmodel.spec.model import TransformerSpec
from perfmodel.stages.joint_model import FINAL_MODULATION, embedding
from perfmodel.stages.layers import READ_WRITE, traffic

GATED_RESIDUAL_BYTES = 10.0
POOL_BYTES = 20.0


def refiner(spec: TransformerSpec, batch: Ints, tokens: Ints) -> tuple[Op, ...]:
    """All operators that turn encoder states into the text stream.

    Args:
        spec: dimensions; `refiner_layers` blocks of the full width.
        batch: outputs.
        tokens: padded text tokens of each.
    """
    rows, vector, hidden = (Rows.TEXT, batch * tokens), (Rows.NONE, batch), spec.hidden
    width = spec.text_width or hidden
    return (
        traffic("refiner pooled text", rows, (POOL_BYTES * width,) * 2, launches=3),
        embedding("refiner time projection 1", vector, (hidden, spec.time_width)),
        embedding("refiner time projection 2", vector, (hidden, hidden)),
        embedding("refiner pooled projection 1", vector, (hidden, width)),
        embedding("refiner pooled projection 2", vector, (hidden, hidden)),
        embedding("refiner text embedding", rows, (hidden, width)),
        *_blocks(spec, batch, tokens),
    )


def norms(spec: TransformerSpec) -> int:
    """Parameters of the norms in all blocks: two with scale and shift."""
    return spec.refiner_layers * 4 * spec.hidden


def _blocks(spec: TransformerSpec, batch: Ints, tokens: Ints) -> tuple[Op, ...]:
    rows, hidden, count = (Rows.TEXT, batch * tokens), spec.hidden, spec.refiner_layers
    vector = (Rows.NONE, batch)
    products = (
        ("refiner q, k, v projection", rows, (hidden, hidden), 3),
        ("refiner attention output", rows, (hidden, hidden), 1),
        ("refiner feed-forward in", rows, (spec.ffn, hidden), 1),
        ("refiner feed-forward out", rows, (hidden, spec.ffn), 1),
        ("refiner gates", vector, (FINAL_MODULATION * hidden, hidden), 1),
    )
    attention = Attention(
        name="refiner attention",
        count=count,
        batch=batch,
        seq_q=tokens,
        seq_kv=tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.TEXT,
        masked=True,
        tensor_split=False,
    )
    return (
        *(
            replace(embedding(name, where, width), count=count * each)
            for name, where, width, each in products
        ),
        attention,
        traffic("refiner norm", rows, (READ_WRITE * hidden,) * 2, count=2 * count),
        traffic("refiner activation", rows, (READ_WRITE * spec.ffn,) * 2, count=count),
        traffic(
            "refiner gate and residual",
            rows,
            (GATED_RESIDUAL_BYTES * hidden,) * 2,
            count=2 * count,
            launches=2,
            eager_launches=2,
        ),
    )
