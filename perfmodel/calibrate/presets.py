"""Shape sets of the microbenchmarks that are independent of any model: ``--preset quick|full``.

Widths are those that diffusion transformers and causal video VAEs have.  The ``cpu`` scale holds
the same kinds of shapes at sizes that a few cores finish in about a minute.  ``kernel`` is empty
where the device fills it in (`measure/kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Literal

from perfmodel.calibrate.cases import (
    AttentionCase,
    Case,
    CollectiveCase,
    ConvCase,
    GemmCase,
    HostCase,
    MediaCase,
    PointwiseCase,
    QuantizeCase,
    TransferCase,
)
from perfmodel.ops import dtype_bytes
from perfmodel.units import GIB, KIB, MIB

Preset = Literal["quick", "full"]
Scale = Literal["cpu", "accelerator"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")

POINTWISE: dict[str, tuple[float, int, float]] = {
    "copy": (2, 1, 2),
    "add": (3, 1, 3),
    "silu": (2, 1, 2),
    "gelu": (2, 1, 2),
    "layer_norm": (2, 1, 2),
    "transpose": (2, 1, 2),
    "rms_norm": (7, 6, 2),
    "channel_norm": (3, 3, 3),
    "rope": (10, 5, 2),
    "gated_silu": (5, 2, 3),
    "gated_residual": (5, 2, 3),
}
"""Operator: tensor passes eager, kernels eager, passes in one compiled kernel.

A pass reads or writes ``rows*width`` elements once; broadcast vectors (weights, row statistics)
are left out.  rms_norm: square (2), mean (1), scale by row (2), by weight (2), and two launches on
row statistics.  rope: x*cos (2), negated half (1), concatenation (2), times sin (2), sum (3).
channel_norm: norm over a strided channel axis (1), clamp of the statistics, division (2).
"""

_COMPOSITE = tuple(name for name, (_, launches, _) in POINTWISE.items() if launches > 1)


def pointwise_case(
    what: str, rows: int, width: int, dtype: str = "bf16", mode: str = "eager"
) -> PointwiseCase:
    """A pointwise case with the traffic and launches of its kernel, ``eager`` or ``compile``."""
    passes, launches, fused = POINTWISE[what]
    if mode == "compile":
        passes, launches = fused, 1
    moved = round(passes * rows * width * dtype_bytes(dtype))
    return PointwiseCase(dtype, f"{mode}.{what}", what, rows, width, moved, launches)


def _gemms(
    rows: Iterable[int], weights: Iterable[tuple[int, int]], dtypes: Iterable[str]
) -> list[Case]:
    return [GemmCase(d, "", m, n, k) for d, (n, k), m in product(dtypes, weights, rows)]


def gemm_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Token counts against the projection shapes of diffusion transformers (square, wide, tall)."""
    if scale == "cpu":
        weights = [(256, 256), (512, 512), (1024, 512), (512, 2048), (1024, 1024), (1536, 1536)]
        rows = [32, 128, 512, 1024] if preset == "quick" else [16, 64, 130, 256, 600, 1536, 4096]
        return _gemms(
            rows, weights, ("bf16", "fp32") if preset == "quick" else ("bf16", "fp16", "fp32")
        )
    weights = [(4096, 4096), (1024, 4096), (12288, 4096), (4096, 12288), (1536, 1536), (5120, 5120)]
    rows = [128, 1024, 8192, 22080]
    if preset == "full":
        weights += [(8960, 1536), (1536, 8960), (13824, 5120), (5120, 13824), (3072, 3072)]
        weights += [(14336, 3072), (3072, 14336), (2048, 4096), (4096, 2048), (25600, 5120)]
        rows = [64, 130, 256, 512, 1024, 2048, 4096, 5520, 8192, 11040, 16380, 22080, 44160, 75600]
    cases = _gemms(rows, weights, ("bf16", "fp8"))
    cases += _gemms((1024, 8192), weights[:5], ("fp16", "fp32"))
    return cases


def _attentions(
    grid: Iterable[tuple[int, int]], heads: Iterable[tuple[int, int, int]], causal: bool, dtype: str
) -> Iterator[Case]:
    for (seq_q, seq_kv), (num_heads, kv_heads, head_dim) in product(grid, heads):
        yield AttentionCase(dtype, "", causal, 1, seq_q, seq_kv, num_heads, kv_heads, head_dim)


def attention_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Self-attention (causal or not, grouped heads), cross-attention to text, one-head VAE maps."""
    if scale == "cpu":
        lengths = [128, 256, 512, 1024] if preset == "quick" else [64, 200, 512, 1024, 2048, 4096]
        heads = [(4, 4, 64), (8, 2, 64), (4, 4, 128)]
        cross = [(512, 64), (1024, 128)]
        maps = [(256, 256), (1024, 1024)]
        dtypes: tuple[str, ...] = ("bf16", "fp32")
    else:
        lengths = [512, 2048, 8192, 22080]
        heads = [(32, 8, 128), (12, 12, 128), (24, 24, 64)]
        cross = [(8192, 512), (22080, 512)]
        maps = [(1024, 1024), (3600, 3600)]
        dtypes = ("bf16",)
        if preset == "full":
            lengths = [256, 512, 1024, 2048, 4096, 8192, 11040, 16384, 22080, 32768, 44672, 75600]
            heads += [(40, 40, 128), (8, 2, 128), (16, 4, 128), (5, 5, 128), (16, 16, 72)]
            cross += [(2048, 512), (32760, 512), (75600, 512), (32760, 257)]
            maps += [(920, 920), (14400, 14400)]
    cases: list[Case] = []
    for dtype in dtypes:
        square = [(length, length) for length in lengths]
        cases += _attentions(square, heads, False, dtype)
        cases += _attentions(square[: len(square) * 2 // 3], heads, True, dtype)
        cases += _attentions(cross, heads, False, dtype)
        cases += _attentions(maps, [(1, 1, 384 if scale == "accelerator" else 128)], False, dtype)
    return cases


def _conv(
    channels: tuple[int, int],
    kernel: tuple[int, int, int],
    out: tuple[int, int, int],
    dtype: str,
    stride: tuple[int, int, int] = (1, 1, 1),
) -> ConvCase:
    return ConvCase(dtype, "", *channels, *kernel, *stride, 1, *out)


def conv_cases(preset: Preset, scale: Scale) -> list[Case]:
    """3-D and 2-D convolutions of causal video VAEs: every level, whole maps and 256 px tiles.

    Channels follow the Wan 2.1 (96 to 384) and Wan 2.2 (256 to 1024) decoders; 1, 2 and 4 frames
    are the chunks at the temporal levels.
    """
    if scale == "cpu":
        levels = [(64, 16, 16, 1), (64, 32, 32, 2), (32, 32, 48, 2), (32, 64, 64, 4)]
        levels += (
            [] if preset == "quick" else [(96, 64, 96, 1), (16, 128, 128, 4), (128, 16, 16, 1)]
        )
        dtypes: tuple[str, ...] = ("fp32", "bf16")
    else:
        levels = [(384, 90, 160, 1), (384, 180, 320, 2), (192, 360, 640, 4), (96, 720, 1280, 4)]
        levels += [(384, 32, 32, 1), (96, 256, 256, 4), (1024, 45, 80, 1), (256, 360, 640, 4)]
        dtypes = ("bf16",)
        if preset == "full":
            levels += [(384, 60, 104, 1), (192, 240, 416, 4), (96, 480, 832, 4), (192, 128, 128, 4)]
            levels += [
                (1024, 90, 160, 2),
                (512, 180, 320, 4),
                (1024, 16, 16, 1),
                (256, 128, 128, 4),
            ]
            dtypes = ("bf16", "fp16")
    cases: list[Case] = []
    for dtype, (width, rows, cols, frames) in product(dtypes, levels):
        out = (frames, rows, cols)
        cases.append(_conv((width, width), (3, 3, 3), out, dtype))
        cases.append(_conv((width, width // 2), (1, 3, 3), out, dtype))
        if preset == "full" or frames == 2:
            cases.append(_conv((width, width), (3, 1, 1), out, dtype))
            cases.append(_conv((width, width // 2), (1, 1, 1), out, dtype))
            cases.append(
                _conv((width, width), (1, 3, 3), (frames, rows // 2, cols // 2), dtype, (1, 2, 2))
            )
    return cases


def pointwise_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Norm, rotary embedding, activation, residual and copy, from launch-bound to memory-bound."""
    if scale == "cpu":
        sizes = [(64, 512), (1024, 512), (2048, 2048)]
        sizes += [] if preset == "quick" else [(8192, 1024), (8192, 4096)]
        dtypes: tuple[str, ...] = ("bf16", "fp32")
    else:
        sizes = [(128, 4096), (2048, 4096), (22080, 4096)]
        sizes += (
            [] if preset == "quick" else [(1024, 1536), (8192, 5120), (44160, 4096), (75600, 5120)]
        )
        dtypes = ("bf16",)
    return [pointwise_case(w, r, c, d) for d, w, (r, c) in product(dtypes, POINTWISE, sizes)]


def compiled_pointwise(cases: Iterable[Case]) -> list[Case]:
    """The compiled form of the operators that eager torch runs as several kernels."""
    return [
        pointwise_case(case.what, case.rows, case.width, case.dtype, "compile")
        for case in cases
        if isinstance(case, PointwiseCase) and case.what in _COMPOSITE
    ]


def quantize_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Activation quantisation at the token counts and widths of the fp8 GEMMs."""
    rows = [64, 256, 512, 1024] if scale == "cpu" else [128, 512, 2048, 22080]
    rows += [] if preset == "quick" else [2 * max(rows)]
    widths = (512, 2048) if scale == "cpu" else (4096, 12288)
    return [
        QuantizeCase(what, "eager", "fp8", m, k)
        for what, m, k in product(("compute_scale", "scale_matrix"), rows, widths)
    ]


def collective_case(
    collective: str, ranks: int, full_bytes: float, library: str = ""
) -> CollectiveCase:
    """A 16-bit collective of about `full_bytes`, rounded up so that every rank's shard is whole."""
    unit = 2 * ranks
    message = max(1, -(-int(full_bytes) // unit)) * unit
    return CollectiveCase(collective, library, ranks, message // 2, 2, message)


def collective_cases(preset: Preset, scale: Scale, ranks: Sequence[int]) -> list[Case]:
    """Message sizes in powers (4 quick, 2 full) from 1 KiB to 16 MiB (cpu) or 1 GiB."""
    top = 16 * MIB if scale == "cpu" else GIB
    step = 4 if preset == "quick" else 2
    sizes = [KIB]
    while sizes[-1] * step <= top:
        sizes.append(sizes[-1] * step)
    grid = product(COLLECTIVES, (n for n in ranks if n > 1), sizes)
    return [collective_case(op, n, size) for op, n, size in grid]


def host_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Launch cost of a chain of tiny kernels, issued eagerly, compiled or as a captured graph."""
    del preset, scale
    whats = ("pointwise", "linear", "block")
    return [HostCase(w, mode, 100) for mode in ("eager", "compiled", "graph") for w in whats]


def transfer_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Host-device copies, pinned and pageable; 720p frames in uint8 are 2.8 MB each."""
    sizes = [64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB]
    if scale == "accelerator":
        sizes += [256 * MIB] if preset == "quick" else [128 * MIB, 256 * MIB, 522_547_200, GIB]
    grid = [*product(("h2d", "d2h"), ("pinned", "pageable")), ("h2h", "pageable")]
    return [
        TransferCase(memory, direction, size) for (direction, memory), size in product(grid, sizes)
    ]


def media_case(width: int, height: int, frames: int, fps: int = 24) -> MediaCase:
    """An H.264 encode with the encoder's default (medium) preset."""
    pixels = width * height * frames
    return MediaCase("libx264", "h264", "medium", width, height, frames, fps, pixels)


def media_cases(preset: Preset, scale: Scale) -> list[Case]:
    """Clips at the usual sizes; the rate depends on the host CPU alone."""
    clips = [(256, 144, 9), (256, 144, 25), (320, 192, 17), (416, 240, 9), (416, 240, 17)]
    clips += [(640, 360, 9), (832, 480, 5), (832, 480, 9), (1280, 720, 5)]
    if scale == "accelerator" or preset == "full":
        clips += [(832, 480, 81), (1280, 720, 49), (1280, 720, 189)]
    return [media_case(*clip) for clip in clips]


PRESETS: dict[str, Callable[[Preset, Scale], list[Case]]] = {
    "gemm": gemm_cases,
    "attention": attention_cases,
    "conv": conv_cases,
    "pointwise": pointwise_cases,
    "quantize": quantize_cases,
    "host": host_cases,
    "transfer": transfer_cases,
    "media": media_cases,
}
"""Presets by operator; collectives also need the group sizes (`collective_cases`)."""
