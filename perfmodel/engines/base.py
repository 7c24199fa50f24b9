"""What an inference engine tells the other rooms: behaviour, legality rules, commands.

A `Behaviour` is plain data: everything that placement, memory and cost need to know of one engine
version on one device for one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from perfmodel.errors import Problem
from perfmodel.spec.hardware import Device
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Traits

if TYPE_CHECKING:
    from perfmodel.engines.legality import Rule


@dataclass(frozen=True, slots=True)
class Version:
    """An engine version and the day whose behaviour it has.

    Attributes:
        label: as printed, e.g. ``0.30.0`` or ``main at 2026-06-16``.
        date: ISO date (lexical order is time order).
        release: the release whose behaviour it has; None: the main branch at `date`.
        problems: warnings, e.g. that the nearest known version was taken.
    """

    label: str
    date: str
    release: tuple[int, int, int] | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Where an engine keeps weights unless told otherwise, and how wide it loads them.

    Attributes:
        text_encoder_bits, vae_bits: as loaded for this model; 0 = as the engine loads all models.
        resident_multiple: a device that holds all weights of a rank this many times keeps them
            all; 0: the engine has no such rule. Quantised transformers are not counted.
        streamed: on any other device separate encoders come from the host layer by layer; what
            lies outside their layers stays.
        fold_min_width: encoders at least this wide are divided over the ranks of a replica, if
            these reach each other's memory; 0: never.
        quantizes_text: separate encoders are quantised with the transformer.
    """

    text_encoder_bits: int = 0
    vae_bits: int = 0
    resident_multiple: float = 0.0
    streamed: bool = False
    fold_min_width: int = 0
    quantizes_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one engine version runs one model on one device, options resolved.

    Attributes:
        engine, version, date: what was resolved; `terms` names its latency terms file.
        pipeline: the engine's pipeline class for the model; "" when it has none.
        traits: what families do differently inside a stage (rounding, VAE fast path, encode).
        attention_backend: of the denoiser's self-attention, e.g. ``CUDNN_ATTN``.
        cross_attention_backend: of attention outside the sequence-parallel plan.
        ring_attention_backend: what the chunks of ring attention run on, as the engine names it.
        ring_attention_kernel: the kernel family behind it.
        torch_attention_kernel: the kernel family behind torch's attention without a mask.
        attention_explicit: the user chose the backend (an engine then never substitutes it).
        attention_available: backends that have a kernel for the device.
        attention_shared, attention_ring: those that run where ranks share the tokens, and those
            with a ring kernel; None: all.
        platform: ``cuda``, ``rocm``, ``npu``; "" when the engine does not run on the device.
        compiled: transformer blocks are compiled (``enforce_eager`` False).
        rank_order: axes from fastest to slowest in the global rank.
        ulysses_copies: full copies around each exchange of one Ulysses attention (q, k, v; output).
        ulysses_mode: strict, or advanced_uaa (pads heads, takes uneven sequences).
        auto_pad: zero rows are appended when the tokens do not divide; else it is an error.
        pad_masked: padding builds an attention mask (a slower kernel path).
        tokens_padded_to_degree: extra sound frames are generated until the tokens divide.
        has_sp, has_allgather, has_tp, has_cfg, has_pp, has_hsdp, has_vae_patch,
            has_text_encoder_tp, has_spatial_shard, has_vae_tiling: whether the axis does anything
            for this model.
        patch_warmup_steps: synchronous steps before patches of the latent follow one another
            through the pipeline stages; None: the stages take turns.
        hsdp_breaks_graph: each attention call leaves the compiled graph under HSDP.
        vae_result_on_rank0: the decoded clip exists on rank 0 only; else it is broadcast.
        vae_encode_mode: how ranks that share a decode share an encode: ``tile``, ``band`` or
            ``whole`` (each encodes all of it).
        vae_over_sequence: only the ranks of a sequence group share a decode.
        vae_patch_below_world_legal: degrees between 1 and the world size work.
        vae_tile_px, vae_tile_stride_px: tile edge and step in pixels; 0 when not tiled.
        vae_tiling_default: whether a single-rank decode is tiled unless asked otherwise.
        offload_modes: values of the offload option that the pipeline supports.
        weight_only: dtypes of weights that the engine widens before each product.
        dtypes: of linears, beside bf16, that its commands set up; None: all, or not read.
        compile_flag: it can be told whether blocks are compiled.
        vae_fast_paths: data movements of the VAE that it can be told to run, or always runs.
        cfg_on_distilled_refused: guidance parallelism on one-branch checkpoints is an error.
        has_ring: ring attention exists where sequence parallelism does.
        legal_degrees: degrees that the pipeline accepts, for axes that it limits by name.
        fused_blocks: hand-written fused kernels replace chains of small ones, compiled or not.
        fused_quantise: activations of low-precision products are quantised by torch operations
            that the compiler joins to the kernels that write them.
        result_crosses_processes: a server process of its own answers, so the clip is copied to it.
        time_ends: what the engine's published end-to-end time ends with: ``response``, or
            ``result`` when the file is written after the clock stopped.
        encodes_in_turn: the server encodes the clips of requests that end together one by one.
        checks_frames: guardrails look at every decoded frame before the answer.
        encodes_while_decoding: frames go to the video encoder while the VAE decodes the next ones;
            the answer names the file, so that no clip crosses processes.
        timers_wait: stage timers wait for the device.
        runs_ahead: the host launches ahead of the device from step to step.
        residency: where weights are kept by default; None: on the device, as the options say.
        options: the user's options with the engine's defaults filled in.
        assumed: option names that the user did not give.
        sources: where the facts were read.
    """

    engine: str
    version: str
    date: str
    terms: str
    pipeline: str = ""
    traits: Traits = field(default_factory=Traits)
    attention_backend: str = "TORCH_SDPA"
    cross_attention_backend: str = "TORCH_SDPA"
    ring_attention_backend: str = "TORCH_SDPA"
    ring_attention_kernel: str = "TORCH_SDPA"
    torch_attention_kernel: str = "TORCH_SDPA"
    attention_explicit: bool = False
    attention_available: tuple[str, ...] = ()
    attention_shared: tuple[str, ...] | None = None
    attention_ring: tuple[str, ...] | None = None
    platform: str = "cuda"
    compiled: bool = True
    rank_order: tuple[str, ...] = ("tp", "ulysses", "ring", "pp", "cfg", "dp")
    ulysses_copies: int = 2
    ulysses_mode: str = "strict"
    auto_pad: bool = True
    pad_masked: bool = False
    tokens_padded_to_degree: bool = False
    has_sp: bool = True
    has_allgather: bool = True
    has_tp: bool = True
    has_cfg: bool = True
    has_pp: bool = False
    has_hsdp: bool = True
    has_vae_patch: bool = True
    has_text_encoder_tp: bool = False
    has_spatial_shard: bool = False
    has_vae_tiling: bool = True
    patch_warmup_steps: int | None = None
    hsdp_breaks_graph: bool = True
    vae_result_on_rank0: bool = True
    vae_encode_mode: Literal["tile", "band", "whole"] = "tile"
    vae_over_sequence: bool = False
    vae_patch_below_world_legal: bool = True
    vae_tile_px: int = 256
    vae_tile_stride_px: int = 192
    vae_tiling_default: bool = False
    offload_modes: tuple[str, ...] = (
        "none",
        "auto",
        "text-encoder",
        "model",
        "layerwise-gather",
        "layerwise",
    )
    weight_only: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    compile_flag: bool = True
    vae_fast_paths: tuple[str, ...] = ("off",)
    cfg_on_distilled_refused: bool = True
    has_ring: bool = True
    legal_degrees: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fused_blocks: bool = False
    fused_quantise: bool = False
    result_crosses_processes: bool = True
    time_ends: str = "response"
    encodes_in_turn: bool = False
    checks_frames: bool = False
    encodes_while_decoding: bool = False
    timers_wait: bool = True
    runs_ahead: bool = True
    residency: Residency | None = None
    options: Options = field(default_factory=Options)
    assumed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The plain numbers that legality rules look at: one request on one system.

    Attributes:
        behaviour: of the engine version, with resolved options.
        model, model_id, hf_id: title, slug and checkpoint as they are named to people.
        family: stage family of the model.
        heads, kv_heads, hidden, ffn_width: of the denoiser's blocks.
        layers: denoiser blocks of one expert; experts: full transformers that take turns.
        tokens: latent tokens of the sequence with sound and conditions.
        sound_tokens: the part of `tokens` that is sound; sound_tokens_per_s: their rate.
        text_tokens: text tokens of a branch.
        branches: guidance branches that this request runs.
        distilled: the checkpoint runs without classifier-free guidance whatever is asked.
        guidance: guidance scale of the request.
        task, width, height, frames, fps, steps, seed: of the request, after rounding.
        outputs: images or clips of one request.
        in_flight: requests that a benchmark sends to a server at once.
        flow_shift, negative_prompt: sent with the request when not None.
        input_images: images that the request carries.
        num_gpus, nodes, gpus_per_node: of the system.
        sockets_of: CPUs that the first devices of a host are spread over, None where none is
            between them.
        device, vendor, device_family: catalogue id, maker, architecture family.
        peak_dtypes: dtypes whose matrix peak rate is known for the device.
        tokens_at: video tokens of another (width, height, frames), to propose a legal shape.
    """

    behaviour: Behaviour
    model: str
    model_id: str
    hf_id: str = ""
    family: str = ""
    heads: int
    kv_heads: int
    hidden: int
    ffn_width: int
    layers: int = 1
    experts: int = 1
    tokens: int
    sound_tokens: int = 0
    sound_tokens_per_s: float = 25.0
    text_tokens: int = 0
    branches: int = 1
    distilled: bool = False
    guidance: float = 1.0
    task: str = "t2v"
    width: int = 1280
    height: int = 720
    frames: int = 1
    fps: float = 24.0
    steps: int = 1
    seed: int = 42
    outputs: int = 1
    in_flight: int = 1
    flow_shift: float | None = None
    negative_prompt: str | None = None
    input_images: int = 0
    num_gpus: int = 1
    nodes: int = 1
    gpus_per_node: int = 1
    device: str = ""
    vendor: str = "nvidia"
    device_family: str = ""
    peak_dtypes: frozenset[str] = frozenset({"bf16"})
    tokens_at: Callable[[int, int, int], int] | None = None
    sockets_of: Callable[[int], int | None] | None = None

    @property
    def has_input_image(self) -> bool:
        """Whether the request carries an image."""
        return self.input_images > 0


@dataclass(frozen=True, slots=True)
class Commands:
    """Three shell texts: start the server, send one request, measure it."""

    serve: str
    request: str
    benchmark: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command as typed, read back.

    Attributes:
        parallel: its degrees.
        options: option overrides, keys of `Options` (only what the command sets).
        model: checkpoint name or path; "" when the command names none.
        num_gpus: the number of devices that it asks for, if any.
        engine: engine that the command starts.
        ignored: flags that do not change the prediction (port, host, ...).
        problems: warnings, e.g. a step cache whose skip ratio the command does not tell.
        request: fields of `Workload` that the command states (width and height [px], frames, ...).
    """

    parallel: ParallelConfig
    options: Mapping[str, object]
    model: str
    num_gpus: int | None = None
    engine: str = "vllm-omni"
    ignored: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    request: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """An inference engine: one folder in ``engines/``, one line in the registry.

    Attributes:
        name: id.
        sends_together: its benchmark sends the requests in flight at once, not one after another.
    """

    name: str
    sends_together: ClassVar[bool]

    def version(self, text: str | None = None, dated: str | None = None) -> Version:
        """Version from ``0.30.0``, ``2026-06-16`` or None (the pinned one).

        `dated` is the day that stands in for a text that is neither (a commit, a branch).

        Raises:
            BadInput: neither a version nor a date, and no `dated`.
        """

    def behaviour(
        self, model: ModelSpec, device: Device, version: Version, options: Options
    ) -> Behaviour:
        """Everything that the other rooms need to know of this version, model and device."""

    def rules(self) -> tuple[Rule, ...]:
        """Legality rules, in the order in which they are reported."""

    def searched_axes(self, behaviour: Behaviour) -> tuple[str, ...]:
        """Keys of `ParallelConfig` that are worth enumerating for this model."""

    def commands(self, ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
        """Serve, request and benchmark texts; `predicted_s` is the expected request time [s]."""

    def read_launch(self, argv: Sequence[str]) -> Launch:
        """Read a launch command as typed.

        Raises:
            BadInput: unknown flags or values, each with the nearest known one.
        """
