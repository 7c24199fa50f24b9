"""An engine made of `Facts`: versions, behaviour, rules, searched axes, commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from perfmodel.engines.base import Behaviour, Commands, Context, Launch, Version
from perfmodel.engines.described.facts import (
    AXES,
    Facts,
    ModelFacts,
    Starter,
    resolve_version,
)
from perfmodel.engines.legality import Rule
from perfmodel.engines.torch_days import TORCH_2_9, attention_kernel
from perfmodel.engines.vllm_omni.attention import backend_name, device_backends, platform_of
from perfmodel.spec.hardware import Device
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.traced import TracedSpec
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Traits

Reader = Callable[[Sequence[str]], Launch]


@dataclass(frozen=True)
class DescribedEngine:
    """The engine object.

    Attributes:
        facts: everything that is known of it.
        starter: renders its commands.
        reader: reads its launch command.
        extra_rules: rules that only this engine has.
    """

    sends_together: ClassVar[bool] = False
    facts: Facts
    starter: Starter
    reader: Reader
    extra_rules: tuple[Rule, ...] = field(default=())

    @property
    def name(self) -> str:
        """Engine id."""
        return self.facts.name

    def version(self, text: str | None = None, dated: str | None = None) -> Version:
        """Version from a release number, a day or None (the release that was read)."""
        return resolve_version(self.facts, text, dated)

    def behaviour(
        self, model: ModelSpec, device: Device, version: Version, options: Options
    ) -> Behaviour:
        """How the engine runs `model` on `device`, options resolved."""
        return _behaviour(self.facts.on(version.date), model, device, version, options)

    def rules(self) -> tuple[Rule, ...]:
        """Legality rules, in the order in which they are reported."""
        from perfmodel.engines.described.rules import RULES

        return (*RULES, *self.extra_rules)

    def searched_axes(self, behaviour: Behaviour) -> tuple[str, ...]:
        """Keys of `ParallelConfig` that do something for this model."""
        axes = (
            ("cfg", behaviour.has_cfg),
            ("ulysses", behaviour.has_sp),
            ("ring", behaviour.has_sp and behaviour.has_ring),
            ("tp", behaviour.has_tp),
            # Patches that see stale keys change the output: only where they are asked for.
            ("pp", behaviour.has_pp and behaviour.patch_warmup_steps is None),
            ("hsdp", behaviour.has_hsdp),
            ("vae_patch", behaviour.has_vae_patch),
        )
        return tuple(axis for axis, useful in axes if useful)

    def commands(self, ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
        """Start, request and benchmark texts; `predicted_s` is the expected request time [s]."""
        return self.starter(ctx, config, predicted_s)

    def read_launch(self, argv: Sequence[str]) -> Launch:
        """Read the engine's launch command as typed.

        Raises:
            BadInput: unknown flags or values, each with the nearest known one.
        """
        return self.reader(argv)


def _resolved(
    facts: Facts, found: ModelFacts | None, device: Device, options: Options
) -> tuple[Options, tuple[str, ...]]:
    """The options with defaults filled in, and the names that were filled."""
    platform = platform_of(device.family)
    chosen = options.attention_backend
    density = found.sparse_attention.get((chosen or "").upper()) if found else None
    # Sparse kernels run the tiles that are left as the engine's own attention runs them.
    named = chosen if chosen and density is None else ""
    backend = _spelled(facts, named) if named else ""
    compiled = options.compile if options.compile is not None else bool(found and found.compiled)
    tiled = bool(found and found.tiles_over_ranks) and options.vae_tiling == "on"
    banded = bool(found and found.banded_vae) and options.vae_mode == "tile" and not tiled
    tiles = bool(found and found.vae_tiled) and options.vae_tiling == "auto"
    update = {
        "attention_backend": backend or facts.attention(device),
        "attention_density": density or options.attention_density,
        "compile": compiled and platform != "npu",
        "vae_fast_path": options.vae_fast_path or _fast_path(found, platform),
        "vae_tiling": "on" if tiles else options.vae_tiling,
        "vae_mode": "spatial_shard_height" if banded else options.vae_mode,
    }
    filled = tuple(
        name
        for name in ("attention_backend", "compile", "vae_fast_path")
        if getattr(options, name) is None
    )
    return options.model_copy(update=update), filled


def _fast_path(found: ModelFacts | None, platform: str) -> str:
    """What the engine runs without being asked: its kernels are for CUDA."""
    return found.vae_fast_path if found and platform == "cuda" else "off"


_GENERATIONS = {"FA2": "FLASH_ATTN_2", "FLASH_2": "FLASH_ATTN_2", "FA4": "FLASH_ATTN"}


def _spelled(facts: Facts, given: str) -> str:
    """A backend by the name that its law has."""
    name = backend_name(given)
    return facts.aliases.get(name) or _GENERATIONS.get(name, name)


def _attentions(facts: Facts, device: Device) -> tuple[str, ...]:
    """Backends that may be asked for: those of the engine with a kernel for the device."""
    here = {*device_backends(device), facts.attention(device)}
    if platform_of(device.family) == "cuda":
        here |= {"FLASH_ATTN_2", "SDPA_EFFICIENT", "XFORMERS"}
    here -= facts.refused(device, "alone")
    return tuple(name for name in facts.attentions if name in here)


def _except(names: tuple[str, ...], refused: frozenset[str]) -> tuple[str, ...] | None:
    """What is left of `names`; None where nothing is refused."""
    return tuple(name for name in names if name not in refused) if refused else None


def _behaviour(
    facts: Facts, model: ModelSpec, device: Device, version: Version, options: Options
) -> Behaviour:
    found = (
        facts.model(model.slug, version.date)
        if model.traced is None
        else _traced(facts, model.traced)
    )
    resolved, assumed = _resolved(facts, found, device, options)
    backend = resolved.attention_backend or "TORCH_SDPA"
    platform = platform_of(device.family)
    ring = (facts.ring_attention or facts.attention)(device)
    if options.attention_backend:
        ring = backend
    available = _attentions(facts, device)
    torch_kernel = attention_kernel(device.family, version.date)
    base = Behaviour(
        engine=facts.name,
        version=version.label,
        date=version.date,
        terms=facts.terms,
        attention_backend=backend,
        cross_attention_backend=backend,
        ring_attention_backend=ring,
        ring_attention_kernel=torch_kernel if ring == "TORCH_SDPA" else ring,
        torch_attention_kernel=torch_kernel,
        attention_explicit=options.attention_backend is not None,
        attention_available=available,
        attention_shared=_except(available, facts.refused(device, "shared")),
        attention_ring=_except(available, facts.refused(device, "ring")),
        platform=platform if platform in facts.platforms else "",
        compiled=bool(resolved.compile),
        rank_order=facts.rank_order,
        ulysses_copies=facts.copies,
        cfg_on_distilled_refused=False,
        weight_only=facts.weight_only,
        dtypes=facts.dtypes,
        vae_fast_paths=(_fast_path(found, platform),),
        compile_flag=found is None or found.compile_flag,
        fused_quantise=facts.torchao and bool(resolved.compile),
        patch_warmup_steps=facts.patch_warmup_steps,
        vae_tiling_default=resolved.vae_tiling == "on",
        result_crosses_processes=facts.server,
        time_ends=facts.stays,
        options=resolved,
        assumed=assumed,
        sources=facts.sources,
        **{f"has_{axis}": False for axis in AXES if axis not in ("ulysses", "ring")},  # type: ignore[arg-type]
        has_sp=False,
    )
    if found is None:
        return base
    fused_norms = facts.torch_norms and version.date >= TORCH_2_9 and platform != "npu"
    return _with_model(base, found, fused_torch_norms=fused_norms)


def _traced(facts: Facts, spec: TracedSpec) -> ModelFacts | None:
    """Facts of a traced class: tokens are divided only where its attention allows it."""
    found = facts.traced
    if found is None or spec.sequence_parallel:
        return found
    return replace(found, axes=found.axes - {"ulysses", "ring"})


def _with_model(base: Behaviour, found: ModelFacts, *, fused_torch_norms: bool) -> Behaviour:
    options, axes = base.options, found.axes
    # Fused kernels are CUDA and HIP code; on an NPU the modules keep norms and rotary embeddings as
    # one kernel each (``npu_rms_norm``, ``npu_rotary_mul``; SGLang 0.5.23 ``runtime/layers``).
    fused = found.fused_blocks and base.platform != "npu"
    return replace(
        base,
        pipeline=found.pipeline,
        traits=Traits(
            fused_qkv=found.fused_qkv,
            modulation_per_frame=found.modulation_per_frame,
            closing_steps=found.closing_steps,
            understanding_each_forward=found.text_each_forward,
            condition_whole_clip=found.whole_clip,
            frame_rounding=found.rounding,
            vae_fast_path=options.vae_fast_path or "off",
            boundary_ratio=found.boundary_ratio,
            flow_shift=found.flow_shift,
            text_split=found.text_split,
            sound_reads=found.sound_reads,
            fused_torch_norms=fused_torch_norms,
            fused_norm_rope=found.fused_norm_rope or (found.fused_blocks and not fused),
            valid_text_only=found.valid_text_only,
            text_bits=found.text_bits,
            vae_bits=found.vae_bits,
            vae_encode_bits=found.encode_bits,
            vae_autocast=found.vae_autocast,
        ),
        auto_pad=found.auto_pad,
        ulysses_mode="advanced_uaa" if found.uneven else options.ulysses_mode,
        pad_masked=found.pad_masked,
        fused_blocks=fused,
        # Hand-written kernels stay fused, whatever gathers their weights.
        hsdp_breaks_graph=not found.fused_blocks,
        has_sp=bool(axes & {"ulysses", "ring", "allgather"}),
        has_ring="ring" in axes,
        has_allgather="allgather" in axes,
        has_tp="tp" in axes,
        has_cfg="cfg" in axes,
        has_pp="pp" in axes,
        has_hsdp="hsdp" in axes,
        has_vae_patch="vae_patch" in axes,
        has_text_encoder_tp="text_encoder_tp" in axes,
        has_spatial_shard=found.banded_vae,
        has_vae_tiling=found.tiles_vae,
        vae_result_on_rank0=not found.vae_everywhere,
        vae_encode_mode=found.encode_mode,
        vae_over_sequence=found.vae_over_sequence,
        encodes_while_decoding=found.streams_frames
        and base.platform == "cuda"
        and not base.compiled,
        timers_wait=found.timers_wait,
        runs_ahead=found.runs_ahead,
        residency=found.residency,
        offload_modes=found.offload_modes,
        dtypes=base.dtypes if found.dtypes is None else found.dtypes,
    )
