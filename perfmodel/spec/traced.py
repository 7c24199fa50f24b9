"""A model class as the list of operators that it was seen to run (``family: traced``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perfmodel.spec.forms import Form
from perfmodel.spec.workload import Frozen

Positive = Annotated[int, Field(strict=True, ge=1)]
Count = Annotated[int, Field(strict=True, ge=0)]


class TracedOp(Frozen):
    """One operator of a pass.

    Attributes:
        name: module that runs it, ``*`` for the number of a block.
        count: executions.
        whole: runs before the blocks, so every rank of a sequence group runs all of it.
    """

    name: Annotated[str, Field(max_length=200)]
    count: Form = 1
    whole: bool = False


class TracedGemm(TracedOp):
    """``[batch, m, k] x [k, n]``; `weight`: the second factor is a weight."""

    kind: Literal["gemm"]
    batch: Form = 1
    m: Form
    n: Form
    k: Form
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    weight: bool = True


class TracedAttention(TracedOp):
    """Scaled dot-product attention."""

    kind: Literal["attention"]
    batch: Form
    queries: Form
    keys: Form
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    causal: bool = False
    masked: bool = False


class TracedConv(TracedOp):
    """A convolution; `in_channels` are those of one group, `out` frames, rows and columns.

    ``bias``: one is added to the output.
    """

    kind: Literal["conv"]
    batch: Form
    in_channels: Positive
    out_channels: Positive
    kernel: tuple[Positive, Positive, Positive]
    stride: tuple[Positive, Positive, Positive] = (1, 1, 1)
    out: tuple[Form, Form, Form]
    bias: bool = True
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"


class TracedMoves(TracedOp):
    """Kernels between two products that only move memory.

    Attributes:
        eager: bytes that they read and write, one by one.
        fused: bytes that enter from outside and leave again (what a compiler would move).
        kernels: how many they are.
        copy_only: they only copy.
    """

    kind: Literal["moves"]
    eager: Form
    fused: Form
    kernels: Form
    copy_only: bool = False


AnyOp = Annotated[
    TracedGemm | TracedAttention | TracedConv | TracedMoves, Field(discriminator="kind")
]
Ops = Annotated[tuple[AnyOp, ...], Field(max_length=5000)]


class TracedEncoder(Frozen):
    """A text encoder; ``t`` is the length of its sequence.

    Attributes:
        layers, layer_params, width: of its repeated blocks.
    """

    name: str
    params: Positive
    layers: Count = 0
    layer_params: Count = 0
    width: Count = 0
    ops: Ops


class TracedVae(Frozen):
    """Both networks of a VAE over a map of ``f`` x ``h`` x ``w`` latent positions.

    Attributes:
        encode_peak, decode_peak: most bytes alive at once, weights, input and output left out.
    """

    encoder_params: Count
    decoder_params: Positive
    encode: Ops = ()
    decode: Ops
    encode_peak: Form = 0
    decode_peak: Form


class TracedSpec(Frozen):
    """The denoiser of a traced model.

    Attributes:
        class_name: the class that ran.
        library: where it is from, with its version.
        params: all parameters.
        blocks, block_params: its repeated blocks, and the parameters of one.
        weight_params: parameters in matrix products.
        inner_width: widest input of a product inside a block.
        frames, text_tokens: latent frames and text tokens where the class takes no other number.
        grid: rows and columns of tokens, the same.
        sequence_parallel: tokens can be divided: every attention over them is one over all tokens.
        ops: one forward.
        encoders: text encoders that are not in the catalogue.
    """

    class_name: str
    library: str
    params: Positive
    blocks: Count
    block_params: Count
    weight_params: Count
    inner_width: Positive
    frames: Positive | None = None
    text_tokens: Positive | None = None
    grid: tuple[Positive, Positive] | None = None
    sequence_parallel: bool
    ops: Ops
    encoders: tuple[TracedEncoder, ...] = ()
