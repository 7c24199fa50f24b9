"""What a model family provides: shapes, unsharded operators, and weights by component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perfmodel.ops import Floats, Ints, Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine does differently inside a stage; the engine fills it, a family reads it.

    Attributes:
        fused_qkv: one GEMM for q, k and v where the family allows it.
        modulation_per_frame: timesteps of frames are projected once a frame, not for each token.
        closing_steps: steps after the last, on the clean result (the original Cosmos-Predict2).
        understanding_each_forward: text tower recomputed at every forward (diffusers) or once.
        condition_whole_clip: image-to-video encodes the image repeated over all frames.
        clip_on_host: it repeats and converts them in host memory, before the copy to the device.
        frame_rounding: ``up`` to 4k+1, ``floor`` to F//4*4+1 ; None: the family's own rule.
        vae_fast_path: off, lossless or channels_last.
        boundary_ratio: expert boundary the engine uses where the request names none.
        flow_shift: shift of its schedule likewise; None: the catalogue's.
        valid_text_only: text is cut to its real tokens before the blocks (HunyuanVideo-1.5);
            else every padded slot runs through them, masked.
        ragged_attention: a masked attention gathers the real tokens, runs a kernel of ragged
            lengths over them and scatters the result (FlashAttention's varlen functions).
        fused_torch_norms: torch.nn.RMSNorm is one kernel (torch 2.9), not a chain of eight.
        fused_norm_rope: the engine's modules bring kernels of their own for RMS norms and rotary
            embeddings, one each, in eager code too.
        guidance_passes: forwards of a guided step where the engine runs fewer than the model asks
            for (LTX-2); None as the model.
        branches_apart: the branches of a step run one after the other, whatever the published
            pipeline does.
        text_split: sequence parallelism divides the text of a joint attention too, else every rank
            keeps all of it.
        single_stream_tensor: how tensor parallelism treats single-stream blocks: ``row`` (split
            and summed) or ``gather`` (column-split products whose outputs are gathered).
        sound_reads: how the sound on every sequence rank reads the divided video (LTX-2): keys and
            values are exchanged for a share of the heads (``exchange``), gathered (``keys``), or
            projected on every rank from gathered states (``states``).
        text_bits: bits of an activation in the text encoder.
        vae_bits: the same in the VAE's decoder.
        vae_encode_bits: the same in the VAE's encoder.
        vae_autocast: the VAE runs under autocast: norms and activations in fp32.
    """

    fused_qkv: bool = True
    modulation_per_frame: bool = False
    closing_steps: int = 0
    understanding_each_forward: bool = False
    condition_whole_clip: bool | None = None
    clip_on_host: bool = False
    frame_rounding: str | None = None
    vae_fast_path: str = "off"
    boundary_ratio: float | None = None
    flow_shift: float | None = None
    valid_text_only: bool = False
    ragged_attention: bool = False
    fused_torch_norms: bool = False
    fused_norm_rope: bool = False
    guidance_passes: int | None = None
    branches_apart: bool = False
    text_split: bool = False
    single_stream_tensor: str = "row"
    sound_reads: str = "exchange"
    text_bits: int = 16
    vae_bits: int = 16
    vae_encode_bits: int = 16
    vae_autocast: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Weights that live together.

    Attributes:
        name: text_encoder, understanding, transformer, transformer_2, embeddings, vae, ...
        kind: ``text_encoder``, ``transformer``, ``vae`` or ``other`` (the memory columns).
        params: all parameters.
        bits: bits of a parameter as loaded (16 for bf16, 32 for an fp32 VAE).
        block_params: the part inside repeated blocks (HSDP shards it, layerwise offload moves it).
        blocks: number of those blocks.
        tp_params: the part that tensor parallelism divides.
        quantizable_params: the part that a quantised checkpoint stores in the low precision.
        when: phases that need it: any of text_encode, vae_encode, denoise, vae_decode.
        layer_params, layers: the layers of a separate encoder and their number (an engine may
            stream them from the host); width: its hidden size.
    """

    name: str
    kind: str
    params: int
    bits: int = 16
    block_params: int = 0
    blocks: int = 0
    tp_params: int = 0
    quantizable_params: int = 0
    when: tuple[str, ...] = ()
    layer_params: int = 0
    layers: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiseWork:
    """Operators of the denoise stage, unsharded.

    Attributes:
        per_request: once per guidance branch and request (understanding tower, K/V).
        per_forward: every transformer forward; ``count`` includes the number of layers.
        per_step: once a step on every rank (guidance combine, scheduler).
        blocks: transformer blocks that one forward runs (HSDP gathers each).
        block_params: parameters of one block (HSDP message).
        row_reduces: small fp32 all-reduces that tensor parallelism adds per forward:
            (name, count per forward, elements per token row, rows tag is tokens).
        width_gathers: all-gathers that tensor parallelism adds per forward where an engine joins
            column-split maps: (name, count per forward, width), over local tokens and text.
        sequence_reduces: fp32 all-reduces over the sequence group per forward, where attention is
            linear and keeps a state: (name, count per forward, elements an output).
        sequence_gathers: all-gathers of latent rows over the sequence group per forward, besides
            the one at the exit: (name, count per forward, elements of a row).
        hidden: width of the hidden state (pipeline hand-over).
        heads, kv_heads, head_dim: of the self-attention.
        inner_width: widest input of a product inside a block; 0: that of the row-split products.
        exit_width: elements per token that the sequence-parallel exit gathers.
        velocity_elements: elements of the noise prediction that guidance parallelism gathers.
        sequence_parallel_masked: padding builds a mask (Cosmos3) or is left unmasked.
    """

    per_request: tuple[Op, ...] = ()
    per_forward: tuple[Op, ...]
    per_step: tuple[Op, ...] = ()
    blocks: int
    block_params: int
    row_reduces: tuple[tuple[str, int, int, bool], ...] = ()
    width_gathers: tuple[tuple[str, int, int], ...] = ()
    sequence_reduces: tuple[tuple[str, int, int], ...] = ()
    sequence_gathers: tuple[tuple[str, int, int], ...] = ()
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner_width: int = 0
    exit_width: int
    velocity_elements: Floats
    sequence_parallel_masked: bool = False


class Family(Protocol):
    """A model family: one file in ``stages/``, one line in the registry."""

    def shape(self, model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
        """Defaults, the engine's rounding, latent grid, tokens and forwards."""

    def shape_columns(
        self, model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints
    ) -> Shape:
        """`base` at other sizes, as int64 columns (for costing many shapes at once)."""

    def components(self, model: ModelSpec) -> tuple[Component, ...]:
        """All weights a server of this model loads."""

    def text_encode(self, model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
        """Operators of text (and image) encoding of a request, over all branches."""

    def denoise(self, model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
        """Operators of the denoise stage."""

    def vae_encode(
        self, model: ModelSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that encode one map of `frames` x `height` x `width` pixels (a tile or all)."""

    def vae_decode(
        self, model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that decode one map of latent size (a tile or the whole)."""

    def sound_decode(self, model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
        """Operators that decode the sound tokens, after the video; none without sound."""
