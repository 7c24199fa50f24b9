"""Rules on sequence parallelism: heads, tokens, padding, ring kernels."""

from __future__ import annotations

from math import gcd

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import (
    divisors,
    nearest_legal,
    nearest_shapes,
    parallel_text,
    refusal,
    words,
)
from perfmodel.engines.vllm_omni.attention import MASK_BACKENDS, RING_BACKENDS
from perfmodel.errors import Problem
from perfmodel.spec.parallel import IntColumn, Layouts, ParallelConfig

_WHEEL = "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/"


def _sp_model(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.sequence_parallel > 1) & (not ctx.behaviour.has_sp))


def _sp_model_problem(ctx: Context, config: ParallelConfig) -> Problem:
    axis = next(key for key in ("ulysses", "ring", "allgather") if getattr(config, key) > 1)
    clash = (
        f"{axis}={getattr(config, axis)} does nothing for {ctx.model}: its transformer has no "
        "sequence-parallel plan, so every rank would repeat the same work"
    )
    return refusal("sp-model", ctx, config, axis, clash, (1,))


def _heads(ctx: Context, layouts: Layouts) -> BoolColumn:
    if ctx.behaviour.ulysses_mode == "advanced_uaa":
        return np.zeros(len(layouts), bool)
    split = layouts.tp * layouts.ulysses
    uneven = (ctx.heads % split != 0) | (ctx.kv_heads % split != 0)
    whole = (ctx.heads % layouts.tp == 0) & (ctx.kv_heads % layouts.tp == 0)
    return mask((layouts.ulysses > 1) & uneven & whole)


def _heads_problem(ctx: Context, config: ParallelConfig) -> Problem:
    heads, kv_heads = ctx.heads // config.tp, ctx.kv_heads // config.tp
    owner = f"of {ctx.model}" if config.tp == 1 else f"that tp={config.tp} leaves of {ctx.model}"
    bad_heads, bad_kv = heads % config.ulysses != 0, kv_heads % config.ulysses != 0
    if bad_heads and bad_kv and heads != kv_heads:
        verb = f"divides neither the {heads} heads nor the {kv_heads} key/value heads"
    elif bad_heads:
        verb = f"does not divide the {heads} heads"
    else:
        verb = f"does not divide the {kv_heads} key/value heads"
    clash = f"ulysses={config.ulysses} {verb} {owner}"
    return refusal("ulysses-heads", ctx, config, "ulysses", clash, divisors(gcd(heads, kv_heads)))


def running_tokens(ctx: Context, ulysses: IntColumn) -> IntColumn:
    """Latent tokens that run: sound frames are added until the Ulysses group divides them."""
    if ctx.sound_tokens > 0 and ctx.behaviour.tokens_padded_to_degree:
        return ctx.tokens + (-ctx.tokens) % ulysses
    return np.full(len(ulysses), ctx.tokens, np.int64)


def padding(ctx: Context, layouts: Layouts) -> IntColumn:
    """Zero rows that the engine appends so that every rank gets equal shards."""
    return (-running_tokens(ctx, layouts.ulysses)) % layouts.sequence_parallel


def _can_pad(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    masks = not behaviour.attention_explicit or behaviour.attention_backend in MASK_BACKENDS
    padded = (layouts.ring == 1) & (behaviour.auto_pad and masks)
    # advanced_uaa exchanges shards of unequal length where the model does not pad by itself.
    uneven = (layouts.ring == 1) & (layouts.allgather == 1) & (not behaviour.auto_pad)
    return mask(padded | (uneven & (behaviour.ulysses_mode == "advanced_uaa")))


def _tokens(ctx: Context, layouts: Layouts) -> BoolColumn:
    uneven = (padding(ctx, layouts) != 0) & ctx.behaviour.has_sp
    return mask(uneven & ~_can_pad(ctx, layouts))


def _sp_text(config: ParallelConfig) -> str:
    keys = [key for key in ("ulysses", "ring", "allgather") if getattr(config, key) > 1]
    text = words([f"{key}={getattr(config, key)}" for key in keys], " x ")
    degree = config.ulysses * config.ring * config.allgather
    return f"{text} = {degree}" if len(keys) > 1 else text


def _tokens_of(ctx: Context) -> str:
    if not ctx.sound_tokens:
        return f"{ctx.tokens:,} tokens"
    video = ctx.tokens - ctx.sound_tokens
    return f"{video:,} video + {ctx.sound_tokens:,} sound tokens = {ctx.tokens:,}"


def _why_no_padding(ctx: Context, config: ParallelConfig) -> str:
    behaviour = ctx.behaviour
    if not behaviour.auto_pad:
        return f"{behaviour.engine} {behaviour.version} does not pad {ctx.model}"
    if config.ring > 1:
        return "ring attention takes no padding"
    return f"{behaviour.attention_backend} takes no padding mask"


def _sound_hint(ctx: Context, degree: int) -> tuple[str, ...]:
    if not ctx.sound_tokens:
        return ()
    sound = ctx.sound_tokens + (-ctx.tokens) % degree
    return (f"{sound} sound tokens ({sound / ctx.sound_tokens_per_s:.2f} s of sound)",)


def _tokens_problem(ctx: Context, config: ParallelConfig) -> Problem:
    degree = config.ulysses * config.ring * config.allgather
    shapes = _sound_hint(ctx, degree) + nearest_shapes(ctx, degree)
    nearest = nearest_legal(ctx, config)
    typed = () if nearest is None else (f"--parallel {parallel_text(nearest)}",)
    fits = tuple(value for value in divisors(degree) if ctx.tokens % value == 0)
    hints = shapes + typed
    return Problem(
        "sp-tokens",
        f"{_tokens_of(ctx)} do not divide by {_sp_text(config)} "
        f"({ctx.tokens % degree} left over) and {_why_no_padding(ctx, config)}; legal: "
        f"{words(fits)}; try {words(hints, ' or ')}",
        field="--parallel",
        value=_sp_text(config),
        legal_values=tuple(map(str, fits)),
        suggestions=hints,
    )


def _padded(ctx: Context, layouts: Layouts) -> BoolColumn:
    uneven = (padding(ctx, layouts) != 0) & ctx.behaviour.has_sp
    return mask(uneven & _can_pad(ctx, layouts))


def _padded_problem(ctx: Context, config: ParallelConfig) -> Problem:
    degree = config.ulysses * config.ring * config.allgather
    layouts = Layouts.of([config])
    tokens = int(running_tokens(ctx, layouts.ulysses)[0])
    total = tokens + int(padding(ctx, layouts)[0])
    effect = (
        "which forces masked attention"
        if ctx.behaviour.pad_masked
        else "and the padding stays unmasked, so the output changes slightly"
    )
    less = max(value for value in divisors(degree) if tokens % value == 0)
    shapes = nearest_shapes(ctx, degree)
    # Fewer ranks on the tokens of the sequence, the rest unchanged.
    smaller = parallel_text(ParallelConfig(cfg=config.cfg, ulysses=less, tp=config.tp, vae_patch=1))
    hints = (*shapes, *((f"--parallel {smaller}",) if less > 1 or not shapes else ()))
    return Problem(
        "tokens-padded",
        f"{tokens:,} tokens over {_sp_text(config)} are padded to {total:,}, {effect}; "
        f"{words(hints, ' or ')} needs no padding",
        field="--parallel",
        value=_sp_text(config),
        legal_values=tuple(str(v) for v in divisors(degree) if tokens % v == 0),
        suggestions=hints,
        severity="warning",
    )


def _sound_padded(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask(running_tokens(ctx, layouts.ulysses) != ctx.tokens)


def _sound_padded_problem(ctx: Context, config: ParallelConfig) -> Problem:
    added = int(running_tokens(ctx, np.array([config.ulysses], np.int64))[0]) - ctx.tokens
    sound = ctx.sound_tokens + added
    duration = f"{sound / ctx.sound_tokens_per_s:.2f}"
    return Problem(
        "sound-padded",
        f"{_tokens_of(ctx)} do not divide by ulysses={config.ulysses}: the engine adds {added} and "
        f"runs {sound} sound tokens; a sound duration of {duration} s needs no padding",
        field="--sound",
        value=str(ctx.sound_tokens),
        legal_values=(str(sound),),
        suggestions=(f"{sound} sound tokens ({duration} s of sound)",),
        severity="warning",
    )


def _allgather(ctx: Context, layouts: Layouts) -> BoolColumn:
    mixed = (layouts.ulysses > 1) | (layouts.ring > 1)
    blocked = ctx.behaviour.attention_backend == "TRTLLM_ATTN" or not ctx.behaviour.has_allgather
    return mask((layouts.allgather > 1) & (mixed | blocked))


def _allgather_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given = f"allgather={config.allgather}"
    if config.ulysses > 1 or config.ring > 1:
        clash = f"{given} excludes ulysses and ring, but ulysses={config.ulysses} and ring="
        clash += f"{config.ring} were given"
    elif not ctx.behaviour.has_allgather:
        clash = f"{given} does not exist for {ctx.model} in vllm-omni {ctx.behaviour.version}"
    else:
        clash = f"{given} does not work with attention TRTLLM_ATTN, this model's choice here"
    return refusal("allgather", ctx, config, "allgather", clash, (1,))


def _ring_kernel(ctx: Context, layouts: Layouts) -> BoolColumn:
    explicit = ctx.behaviour.attention_explicit
    return mask(
        (layouts.ring > 1) & (explicit and ctx.behaviour.attention_backend not in RING_BACKENDS)
    )


def _ring_kernel_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"ring={config.ring} has no kernel for attention {ctx.behaviour.attention_backend}; "
        f"attention legal with ring: {words(sorted(RING_BACKENDS))}, or none given"
    )
    return refusal("ring-attention", ctx, config, "ring", clash, (1,))


def _ring_falls_back(ctx: Context, layouts: Layouts) -> BoolColumn:
    other = ctx.behaviour.ring_attention_backend != ctx.behaviour.attention_backend
    return mask((layouts.ring > 1) & (other and not ctx.behaviour.attention_explicit))


def _ring_falls_back_problem(ctx: Context, config: ParallelConfig) -> Problem:
    behaviour = ctx.behaviour
    degree = config.ring * config.ulysses
    return Problem(
        "ring-fallback",
        f"ring={config.ring} has no {behaviour.attention_backend} kernel: its chunks run on "
        f"{behaviour.ring_attention_backend}; ulysses={degree} keeps "
        f"{behaviour.attention_backend} where {degree} divides the heads",
        field="--parallel",
        value=f"ring={config.ring}",
        suggestions=(f"ulysses={degree}",),
        severity="warning",
    )


SEQUENCE_RULES: tuple[Rule, ...] = (
    Rule(
        id="sp-model",
        title="ulysses, ring and allgather need a transformer with a sequence-parallel plan.",
        violated=_sp_model,
        problem=_sp_model_problem,
        source=f"{_WHEEL}registry.py _apply_sequence_parallel_if_enabled",
    ),
    Rule(
        id="ulysses-heads",
        title="ulysses divides the query and key/value heads that tp leaves (strict mode).",
        violated=_heads,
        problem=_heads_problem,
        source=f"{_WHEEL}attention/parallel/ulysses.py",
    ),
    Rule(
        id="sp-tokens",
        title="Tokens divide by ulysses x ring unless they can be padded (never with ring).",
        violated=_tokens,
        problem=_tokens_problem,
        source=f"{_WHEEL}hooks/sequence_parallel.py _shard_with_auto_pad",
    ),
    Rule(
        id="allgather",
        title="allgather excludes ulysses, ring and TRTLLM attention.",
        violated=_allgather,
        problem=_allgather_problem,
        source=f"{_WHEEL}data.py; {_WHEEL}attention/layer.py",
    ),
    Rule(
        id="ring-attention",
        title="An attention backend chosen by hand must have a ring kernel when ring > 1.",
        violated=_ring_kernel,
        problem=_ring_kernel_problem,
        source=f"{_WHEEL}attention/parallel/ring.py",
    ),
    Rule(
        id="tokens-padded",
        title="Tokens that do not divide are padded, masked or not, and padding costs time.",
        violated=_padded,
        problem=_padded_problem,
        severity="warning",
        source=f"{_WHEEL}hooks/sequence_parallel.py _shard_with_auto_pad",
    ),
    Rule(
        id="sound-padded",
        title="Sound frames are added until video and sound tokens divide by ulysses.",
        violated=_sound_padded,
        problem=_sound_padded_problem,
        severity="warning",
        source="https://github.com/vllm-project/vllm-omni/pull/4436",
    ),
    Rule(
        id="ring-fallback",
        title="Ring attention runs on torch SDPA where the default backend has no ring kernel.",
        violated=_ring_falls_back,
        problem=_ring_falls_back_problem,
        severity="warning",
        source=f"{_WHEEL}attention/parallel/ring.py",
    ),
)
