"""The Wan repositories' own ``generate.py``: Ulysses, ring (2.1), FSDP of transformer and T5.

Sources: https://github.com/Wan-Video/Wan2.2 and https://github.com/Wan-Video/Wan2.1 (generate.py,
wan/text2video.py, wan/distributed/).
"""

from __future__ import annotations

from perfmodel.engines.described.attention import flash
from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.described.facts import Facts, ModelFacts
from perfmodel.engines.wan_official.commands import read_launch, render
from perfmodel.engines.wan_official.rules import RULES

_AXES = frozenset({"ulysses", "hsdp"})


def _facts(
    pipeline: str, axes: frozenset[str] = _AXES, flow_shift: float | None = None
) -> ModelFacts:
    """Eager modules under autocast; the VAE computes in fp32, whole, on rank 0."""
    return ModelFacts(
        pipeline=pipeline,
        compile_flag=False,
        axes=axes,
        flow_shift=flow_shift,
        vae_bits=32,
        encode_bits=32,
        tiles_vae=False,
        offload_modes=("none", "auto", "model"),
    )


FACTS = Facts(
    name="wan-official",
    title="Wan",
    terms="wan-official",
    releases={"main": "2025-07-28"},
    models=(
        (r"wan2\.2-ti2v", _facts("WanTI2V")),
        (r"wan2\.2-i2v", _facts("WanI2V")),
        # wan/configs/wan_t2v_A14B.py: sample_shift 12, where the others have 5.
        (r"wan2\.2-t2v", _facts("WanT2V", flow_shift=12.0)),
        (r"wan2\.1-i2v", _facts("WanI2V-2.1", _AXES | {"ring"})),
        (r"wan2\.1-t2v", _facts("WanT2V-2.1", _AXES | {"ring"})),
    ),
    platforms=("cuda",),
    attention=flash,
    # wan/modules/attention.py flash_attention: the package of 3, else that of 2, else it stops.
    attentions=("FLASH_ATTN", "FLASH_ATTN_2"),
    dtypes=(),
    sources=(
        "https://github.com/Wan-Video/Wan2.2 generate.py, wan/text2video.py",
        "https://github.com/Wan-Video/Wan2.2 wan/distributed/ulysses.py, fsdp.py",
        "https://github.com/Wan-Video/Wan2.2 wan/modules/vae2_1.py (fp32), attention.py",
    ),
)
ENGINE = DescribedEngine(facts=FACTS, starter=render, reader=read_launch, extra_rules=RULES)
