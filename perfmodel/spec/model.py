"""What a model is: dimensions, tasks and schedule of one pipeline (``models/<slug>.yaml``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.spec.traced import TracedSpec
from perfmodel.spec.vae import Count, Positive, VaeSpec
from perfmodel.spec.workload import Frozen

Timestep = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Guidance = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]


class TaskDefaults(Frozen):
    """What a task runs with when the request names nothing else.

    Attributes:
        flow_shift: shift of the flow-matching schedule (see `stages.schedule`).
        guidance_interval: guidance runs only while the timestep (0 to 1000) lies in it.
        condition_frames: pixel frames of a video condition that are encoded (0: none or one image).
        condition: what conditions the latent besides text.
        vision_tokens: tokens of the prompt that hold one condition image.
        per_token_timestep: each token has a timestep of its own (clean first frame).
    """

    width: Positive
    height: Positive
    frames: Positive
    fps: Annotated[float, Field(strict=True, gt=0, le=240)]
    steps: Positive
    guidance: Guidance
    flow_shift: Annotated[float, Field(strict=True, gt=0, le=100)]
    text_tokens: Positive = 512
    guidance_interval: tuple[Timestep, Timestep] | None = None
    condition: Literal["none", "image", "clip", "video"] = "none"
    condition_frames: Count = 0
    vision_tokens: Count = 0
    per_token_timestep: bool = False


class TransformerSpec(Frozen):
    """Dimensions of the denoiser (and, for Cosmos3, of the text tower of the same shape).

    Attributes:
        layers: blocks of one expert (Cosmos3: of one tower).
        ffn: inner width of the feed-forward network.
        in_channels, out_channels: latent channels that enter and leave (before patchify).
        patch: latent patch (frames, rows, columns) of one token.
        text_width: width of the text states that enter (None: no separate text encoder).
        image_width: width of the image states that enter (None: none enter).
        image_tokens: tokens of the image states.
        vocabulary: rows of the token embedding (0: none here).
        sound_channels: latent channels of sound tokens (0: no sound).
        sound_tokens_per_s: sound latent frames a second.
        action_channels, action_domains: per-domain action projections (weights only).
        text_qk_norm: the text tower norms q and k per head.
        single_layers: blocks that run text and latent tokens as one stream, after `layers` blocks
            of two streams.
        refiner_layers: blocks that refine the text beforehand (Z-Image: text and image apart;
            LTX-2: the text for each stream, outside the denoiser).
        dual_attention_layers: first blocks with a second attention among latent tokens alone.
        pooled_width: width of a pooled text vector that joins the timestep (0: none).
        glyph_width: width of the states of a second text encoder, for drawn text (0: none).
        qk_norm: q and k are normed per head.
        guidance_embedded: the scale is an input of the network, so one branch runs.
        modulation_width: inner width of the projections to shift, scale and gate (0: as hidden).
        text_stream_width: width of the text states inside the blocks where it is not `hidden`.
        cross_heads, cross_head_dim: heads of the attention to text where they differ (0: the same).
        audio_hidden, audio_head_dim: a second stream of `heads` heads for sound (0: none).
        gated_attention: the output of each head is scaled by a gate of the queries' token.
        text_modulation: queries to text and the text itself are shifted and scaled in each block.
        size_conditions: size and aspect ratio of the image are embedded beside the timestep.
        rotary: q and k get a rotary embedding (else positions are added at the entry).
        control_layers: blocks of a second network that reads a control image or clip and adds to
            the blocks of the first (0: none).
        control_channels: channels that enter it.
        raw_text_width: width of the encoder's states that a product reduces to `text_width` in
            every forward (0: they enter as they are).
    """

    hidden: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    ffn: Positive
    activation: Literal["swiglu", "relu2", "gelu"]
    in_channels: Positive
    out_channels: Positive
    patch: tuple[Positive, Positive, Positive]
    time_width: Positive = 256
    text_width: Positive | None = None
    image_width: Positive | None = None
    image_tokens: Count = 0
    vocabulary: Count = 0
    sound_channels: Count = 0
    sound_tokens_per_s: Annotated[float, Field(strict=True, ge=0, le=1e5)] = 0.0
    action_channels: Count = 0
    action_domains: Count = 0
    text_qk_norm: bool = True
    single_layers: Count = 0
    refiner_layers: Count = 0
    dual_attention_layers: Count = 0
    pooled_width: Count = 0
    glyph_width: Count = 0
    qk_norm: bool = True
    guidance_embedded: bool = False
    modulation_width: Count = 0
    text_stream_width: Count = 0
    cross_heads: Count = 0
    cross_head_dim: Count = 0
    audio_hidden: Count = 0
    audio_head_dim: Count = 0
    gated_attention: bool = False
    text_modulation: bool = False
    size_conditions: bool = False
    rotary: bool = True
    control_layers: Count = 0
    control_channels: Count = 0
    raw_text_width: Count = 0

    @property
    def q_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (or value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def patch_width_in(self) -> int:
        """Elements of one input token."""
        return self.in_channels * self.patch[0] * self.patch[1] * self.patch[2]

    @property
    def patch_width_out(self) -> int:
        """Elements of one output token."""
        return self.out_channels * self.patch[0] * self.patch[1] * self.patch[2]


class ModelSpec(Frozen):
    """One pipeline as users name it.

    Attributes:
        slug: id, equal to the file name.
        family: key of the registry in ``stages/``.
        aliases: other names (checkpoint ids, short names), matched without case.
        distilled: few fixed steps and no guidance branch.
        tasks: defaults by task; the first is the model's default task.
        text_encoders: names in `stages.text_encoder.ENCODERS`, run once a branch or image.
        pyramid: sizes that a step runs at, each half as high and wide as the next (Helios-Mid).
        sound_widened: a second vocoder adds the high frequencies of the sound (LTX-2.3).
        sound_decoder: loads and runs the sound tokenizer when sound is asked for.
        experts: full transformers that are all resident; one runs at a step.
        expert_boundary: fraction of the 1000 training timesteps where the experts change.
        frame_rounding: ``up`` to the next 4k+1, ``floor`` to ``F // 4 * 4 + 1``, or ``down`` to the
            last 4k+1 (4: the VAE's temporal ratio).
        guidance_branches: forwards of a guided step (LTX-2: four passes).
        branches_together: the published pipeline runs the branches of a step as one batch.
        size_multiple: width and height are floored to a multiple of it.
        size_strict: tasks that refuse other sizes instead of flooring them.
        published_params: what the publisher states, as text.
        hf_id: the checkpoint as engines are given it: an id, or the folder that was read.
        traced: operators of a class that was traced (family ``traced``).
    """

    slug: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
    title: str
    hf_id: str
    family: str
    aliases: tuple[str, ...] = ()
    distilled: bool = False
    tasks: Annotated[dict[str, TaskDefaults], Field(min_length=1)]
    transformer: TransformerSpec
    vae: VaeSpec
    text_encoders: tuple[str, ...] = ()
    sound_decoder: bool = False
    pyramid: Annotated[int, Field(strict=True, ge=1, le=4)] = 1
    sound_widened: bool = False
    experts: Annotated[int, Field(strict=True, ge=1, le=2)] = 1
    expert_boundary: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None
    frame_rounding: Literal["up", "floor", "down"]
    branches_together: bool = False
    guidance_branches: Annotated[int, Field(strict=True, ge=1, le=8)] = 2
    size_multiple: Positive = 16
    size_strict: tuple[str, ...] = ()
    published_params: str | None = None
    traced: TracedSpec | None = None
    notes: tuple[str, ...] = ()
    sources: Annotated[tuple[str, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_traced(self) -> ModelSpec:
        if (self.family == "traced") != (self.traced is not None):
            raise ValueError("family traced and the operators in traced go together")
        return self

    @property
    def default_task(self) -> str:
        """The task that runs when none is named."""
        return next(iter(self.tasks))
