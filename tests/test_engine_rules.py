"""Legality rules of vLLM-Omni: users' cases, laws, and an independent checker."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from engine_contexts import A100, B300, ENGINE, H100, context
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.engines.base import Context
from perfmodel.engines.legality import legal, problems
from perfmodel.engines.nearest import nearest_legal
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options


def found(ctx: Context, **degrees: int) -> dict[str, Problem]:
    return {p.rule_id: p for p in problems(ENGINE.rules(), ctx, ParallelConfig(**degrees))}


def errors(ctx: Context, **degrees: int) -> set[str]:
    return {key for key, p in found(ctx, **degrees).items() if p.severity == "error"}


def test_head_rule_names_both_counts_and_the_legal_degrees():
    problem = found(context(), ulysses=3)["ulysses-heads"]
    assert problem.line().startswith(
        "error[ulysses-heads]: ulysses=3 divides neither the 32 heads nor the 8 key/value heads of "
        "Cosmos3-Nano; legal: 1, 2, 4, 8; try --parallel "
    )
    assert problem.legal_values == ("1", "2", "4", "8")


def test_tensor_parallel_leaves_fewer_heads_for_ulysses():
    ctx = context(num_gpus=16)
    assert errors(ctx, tp=2, ulysses=8) == {"ulysses-heads"}
    assert errors(ctx, tp=2, ulysses=4) == set()
    assert (
        "the 4 key/value heads that tp=2 leaves"
        in found(ctx, tp=2, ulysses=8)["ulysses-heads"].message
    )


def test_twelve_heads_refuse_ulysses_8_and_offer_4_by_2():
    problem = found(context("wan2.1-t2v-1.3b", num_gpus=8), ulysses=8)["ulysses-heads"]
    assert problem.suggestions == ("ulysses=4,ring=2",)
    assert errors(context("wan2.1-t2v-14b", num_gpus=8), ulysses=8) == set()


@pytest.mark.parametrize(
    "changes",
    [{"guidance": 1.0, "branches": 1}, {"distilled": True}],
    ids=["guidance", "distilled"],
)
def test_guidance_parallel_without_guidance_is_refused_and_ulysses_2_proposed(changes):
    problem = found(context(num_gpus=2, **changes), cfg=2)["cfg-branches"]
    assert problem.suggestions == ("ulysses=2",)
    assert problem.legal_values == ("1",)


def test_an_attention_backend_that_came_later_names_the_release():
    ctx = context(
        "wan2.1-t2v-14b", version="0.20.0", on=H100, device="h100-sxm",
        options=Options(attention_backend="cudnn"),
    )  # fmt: skip
    problem = found(ctx)["attention-backend"]
    assert problem.message.startswith(
        "--attention CUDNN_ATTN came with vllm-omni 0.22.0 and is not in 0.20.0; legal here: "
    )
    assert problem.legal_values == ("FLASH_ATTN", "TORCH_SDPA", "SAGE_ATTN")


def test_video_sparse_attention_needs_its_share_and_whole_sequences():
    def errors_with(**chosen: Any) -> set[str]:
        options = Options(attention_backend="FASTVIDEO_VSA", **chosen)
        return errors(context("wan2.1-t2v-14b", options=options, num_gpus=4), **degrees)

    degrees = {"cfg": 2, "vae_patch": 2}
    assert errors_with() == {"attention-sparse"}
    assert errors_with(attention_density=0.2) == set()
    degrees = {"ulysses": 2}
    assert errors_with(attention_density=0.2) == {"attention-sparse"}


def test_three_branches_take_one_or_three_ranks():
    ctx = context(branches=3, num_gpus=6)
    assert errors(ctx, cfg=3) == set()
    assert errors(ctx, cfg=2) == {"cfg-branches"}
    assert found(ctx, cfg=2)["cfg-branches"].legal_values == ("1", "3")


def test_sound_tokens_that_do_not_divide():
    sound = {"tokens": 44160 + 197, "sound_tokens": 197, "num_gpus": 2}
    before = found(context(version="2026-06-16", **sound), ulysses=2)["sp-tokens"]
    assert before.severity == "error"
    assert before.suggestions[0] == "198 sound tokens (7.92 s of sound)"
    assert "44,160 video + 197 sound tokens" in before.message
    now = found(context(**sound), ulysses=2)
    assert set(now) == {"sound-padded"}
    assert now["sound-padded"].legal_values == ("198",)


def test_odd_token_count_is_refused_by_old_releases_and_padded_by_new_ones():
    slug, degrees = "wan2.2-ti2v-5b", {"ulysses": 2}
    old = found(context(slug, version="0.14.0", num_gpus=2), **degrees)["sp-tokens"]
    assert "--size 704x480" in old.suggestions or "--size 672x512" in old.suggestions
    assert "--frames 85" in old.suggestions
    new = found(context(slug, num_gpus=2), **degrees)
    assert new["tokens-padded"].severity == "warning"
    assert "6,615 tokens over ulysses=2 are padded to 6,616" in new["tokens-padded"].message


def test_proposed_shapes_do_divide():
    ctx = context("wan2.2-ti2v-5b", version="0.14.0", num_gpus=8)
    for degree in (2, 3, 4, 8):
        for text in found(ctx, ulysses=degree).get("sp-tokens", Problem("", "")).suggestions:
            if text.startswith("--size"):
                width, height = map(int, text.split()[1].split("x"))
                assert ctx.tokens_at(width, height, ctx.frames) % degree == 0
            elif text.startswith("--frames"):
                frames = int(text.split()[1])
                assert ctx.tokens_at(ctx.width, ctx.height, frames) % degree == 0


def test_padding_names_the_size_that_needs_none():
    ctx = context(width=832, height=480, frames=81, tokens=8190)
    problem = found(ctx, ulysses=4)["tokens-padded"]
    assert "8,190 tokens over ulysses=4 are padded to 8,192" in problem.message
    assert "masked" in problem.message
    assert problem.suggestions[0] == "--size 832x512"
    assert "--parallel ulysses=2" in problem.suggestions


def test_ring_takes_no_padding():
    ctx = context(width=832, height=480, frames=81, tokens=8190)
    assert errors(ctx, ring=4) == {"sp-tokens"}
    assert errors(ctx, ring=2) == set()


def test_uneven_mode_lifts_the_head_rule():
    options = Options(ulysses_mode="advanced_uaa")
    assert errors(context("wan2.1-t2v-1.3b", num_gpus=8, options=options), ulysses=8) == set()


def test_vae_patch_between_one_and_the_world_depends_on_the_version():
    degrees = {"cfg": 2, "ulysses": 2, "hsdp": 4, "vae_patch": 2}
    slug = "wan2.2-ti2v-5b"
    even = {"tokens": 6552, "tokens_at": None}
    old = found(context(slug, version="0.20.0", **even), **degrees)["vae-patch-world"]
    assert old.legal_values == ("1", "4")
    assert old.suggestions == ("cfg=2,ulysses=2,hsdp=4,vae_patch=4",)
    assert errors(context(slug, **even), **degrees) == set()
    assert errors(context(slug, **even), ulysses=2, vae_patch=4) == {"vae-patch-world"}


def test_weight_sharding_excludes_tensor_pipeline_and_data_parallel():
    ctx = context("wan2.1-t2v-14b", num_gpus=8)
    for axis in ("tp", "pp", "dp"):
        assert "hsdp-with" in errors(ctx, hsdp=2, **{axis: 2})
    assert errors(ctx, hsdp=4, ulysses=4) == set()
    assert errors(ctx, hsdp=8) == set()
    assert errors(ctx, hsdp=2, ulysses=4) == {"hsdp-mesh"}
    assert errors(ctx, hsdp=2, hsdp_replicate=2, ulysses=4) == set()


def test_pipeline_parallel_exists_for_wan_only():
    assert errors(context(), pp=2) == {"pp-model"}
    assert errors(context("wan2.1-t2v-14b"), pp=2) == set()
    assert errors(context("wan2.1-t2v-14b", version="0.20.0"), pp=2) == {"pp-model"}


def test_allgather_excludes_ulysses_and_trtllm_attention():
    assert errors(context(), allgather=2) == set()
    assert errors(context(), allgather=2, ulysses=2) == {"allgather"}
    wan = "wan2.1-t2v-14b"
    assert errors(context(wan), allgather=2) == {"allgather"}  # TRTLLM_ATTN on this device
    assert errors(context(wan, on=H100), allgather=2) == set()
    assert errors(context(version="0.24.0"), allgather=2) == {"allgather"}


def test_ring_refuses_a_backend_that_was_chosen_by_hand_but_not_the_default():
    assert errors(context(), ring=4) == set()
    assert "ring-fallback" in found(context(), ring=4)
    by_hand = context(options=Options(attention_backend="cudnn"))
    assert errors(by_hand, ring=4) == {"ring-attention"}
    assert errors(by_hand, ulysses=4) == set()
    assert "ring-fallback" not in found(context(on=H100), ring=4)


def test_padding_refuses_a_backend_without_masks():
    trtllm = context("wan2.2-ti2v-5b", num_gpus=2, options=Options(attention_backend="TRTLLM_ATTN"))
    assert errors(trtllm, ulysses=2) == {"sp-tokens"}
    assert errors(context("wan2.2-ti2v-5b", num_gpus=2), ulysses=2) == set()


def test_attention_backends_by_device():
    ask = Options(attention_backend="trtllm")
    assert errors(context(options=ask)) == set()
    problem = found(context(on=A100, options=ask))["attention-backend"]
    assert "TRTLLM_ATTN has no kernel" in problem.message
    unknown = found(context(options=Options(attention_backend="cudnn_att")))["attention-backend"]
    assert unknown.suggestions == ("--attention CUDNN_ATTN",)


def test_a_dtype_without_a_peak_rate():
    ctx = context(options=Options(dtype="nvfp4"), peak_dtypes=frozenset({"bf16", "fp8"}))
    assert errors(ctx) == {"missing-peak"}
    assert errors(context(options=Options(dtype="fp8_block"))) == set()


def test_spatial_shard_needs_the_whole_world():
    mode = Options(vae_mode="spatial_shard_height")
    assert errors(context(options=mode), cfg=2, ulysses=2, vae_patch=4) == set()
    assert errors(context(options=mode), cfg=2, ulysses=2, vae_patch=2) == {"spatial-shard"}
    assert errors(context(version="0.22.0", options=mode), cfg=2, vae_patch=2) == {"spatial-shard"}


def test_tiling_off_excludes_vae_patch():
    assert errors(context(options=Options(vae_tiling="off")), cfg=2, vae_patch=2) == {"vae-tiling"}


def test_models_that_the_engine_does_not_know():
    assert errors(context("hunyuanvideo")) == {"model-not-in-engine"}
    assert "model-not-in-engine" in errors(context(version="0.20.0"))


def test_offload_of_a_text_encoder_that_does_not_exist():
    assert errors(context(options=Options(offload="text-encoder"))) == {"offload-mode"}
    assert errors(context("wan2.1-t2v-14b", options=Options(offload="text-encoder"))) == set()


def test_gathered_offload_has_a_first_version_and_excludes_hsdp():
    gather = Options(offload="layerwise-gather")
    assert errors(context(options=gather), ulysses=2) == set()
    assert errors(context(options=gather, version="0.24.0"), ulysses=2) == {"offload-mode"}
    assert "offload-gather" in errors(context(options=gather), ulysses=2, hsdp=2)
    skipping = Options(offload="layerwise-gather", cache_skip=0.3)
    assert "offload-gather" in errors(context(options=skipping), dp=2)
    assert "offload-gather" not in errors(context(options=skipping), ulysses=2)


def test_ovis_image_is_sharded_from_a_day_on():
    def broken(version):
        return errors(context("ovis-image", version=version), hsdp=2, cfg=2)

    assert "hsdp-model" in broken("0.30.0")
    assert "hsdp-model" in broken("2026-09-24")
    assert "hsdp-model" not in broken("2026-09-25")


def test_idle_gpus_are_a_warning_that_names_replicas():
    problem = found(context(num_gpus=8), cfg=2)["idle-gpus"]
    assert problem.severity == "warning"
    assert problem.suggestions == ("cfg=2,dp=4",)
    assert "idle-gpus" not in found(context(), cfg=2, ulysses=2)


def test_all_problems_at_once_errors_first():
    listed = problems(ENGINE.rules(), context(), ParallelConfig(cfg=3, tp=3, pp=3, vae_patch=40))
    assert {"world-size", "cfg-branches", "tp-divides", "pp-model", "vae-patch-world"} <= {
        p.rule_id for p in listed
    }
    assert [p.severity for p in listed] == sorted(p.severity for p in listed)


def slow_legal(ctx: Context, c: ParallelConfig) -> bool:
    """The same rules, one configuration at a time, for Cosmos3 on its defaults."""
    sp = c.ulysses * c.ring
    world = c.cfg * sp * c.tp * c.pp * c.dp
    if c.hsdp > 1:
        if c.tp > 1 or c.pp > 1 or c.dp > 1 or (world > 1 and world != c.hsdp):
            return False
        world = max(world, c.hsdp)
    head_groups = c.tp * c.ulysses
    return (
        world <= ctx.num_gpus
        and (c.cfg == 1 or c.cfg == ctx.branches)
        and c.pp == 1
        and all(n % c.tp == 0 for n in (ctx.heads, ctx.kv_heads, ctx.hidden, ctx.ffn_width))
        and (c.ulysses == 1 or (ctx.heads % head_groups == 0 and ctx.kv_heads % head_groups == 0))
        and (ctx.tokens % sp == 0 or c.ring == 1)
        and c.vae_patch <= world
    )


@pytest.mark.parametrize("tokens", [44160, 8190, 6615])
def test_vectorised_rules_agree_with_a_slow_checker(tokens):
    ctx = context(num_gpus=8, tokens=tokens, tokens_at=None)
    degrees = (1, 2, 3, 4, 8)
    rows = [
        ParallelConfig(cfg, u, r, tp=tp, pp=pp, hsdp=h, vae_patch=v)
        for cfg, u, r, tp, pp, h, v in product(
            (1, 2), degrees, (1, 2, 4), degrees, (1, 2), (1, 2, 4), (1, 2, 16)
        )
    ]
    fast = legal(ENGINE.rules(), ctx, Layouts.of(rows))
    slow = np.array([slow_legal(ctx, row) for row in rows])
    assert 0 < slow.sum() < len(rows)
    assert [r.config_id for r, a, b in zip(rows, fast, slow, strict=True) if a != b] == []


DEGREE = st.sampled_from([1, 1, 1, 2, 3, 4, 5, 8])
CONFIGS = st.builds(
    ParallelConfig, cfg=DEGREE, ulysses=DEGREE, ring=DEGREE, tp=DEGREE, pp=DEGREE,
    hsdp=st.sampled_from([1, 1, 2, 8]), vae_patch=DEGREE,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(CONFIGS, st.sampled_from(["cosmos3-nano", "wan2.1-t2v-1.3b", "wan2.2-ti2v-5b"]))
def test_every_refusal_names_something_legal_to_type(config, slug):
    ctx = context(slug, num_gpus=8)
    for problem in problems(ENGINE.rules(), ctx, config):
        line = problem.line()
        assert "\n" not in line
        assert re.match(r"(error|warning)\[[a-z0-9-]+\]: ", line)
        if problem.severity == "error":
            assert problem.suggestions
            typed = [t.removeprefix("--parallel ") for t in problem.suggestions if "=" in t]
            for text in typed:
                parsed, _ = parse_parallel(text)
                assert not [
                    p for p in problems(ENGINE.rules(), ctx, parsed) if p.severity == "error"
                ]


@settings(max_examples=40, deadline=None)
@given(CONFIGS)
def test_a_legal_configuration_is_its_own_nearest(config):
    ctx = context(num_gpus=8)
    is_legal = legal(ENGINE.rules(), ctx, Layouts.of([config]))[0]
    nearest = nearest_legal(ctx, config)
    assert nearest is not None
    if is_legal and 8 % config.world_size == 0 and config.hsdp in (1, config.world_size):
        assert nearest == config


def test_rule_ids_are_unique_and_explained():
    rules = ENGINE.rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.title.endswith(".")


def test_predicates_return_a_bool_for_each_configuration():
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(cfg=2, ulysses=4), ParallelConfig(tp=8)])
    for slug, on in (("cosmos3-nano", B300), ("wan2.2-i2v-a14b", H100), ("mochi", A100)):
        ctx: Any = context(slug, on=on)
        for rule in ENGINE.rules():
            column = rule.violated(ctx, layouts)
            assert column.dtype == np.bool_
            assert column.shape == (3,)


def test_patches_of_a_replica_are_ranks_of_its_own_server():
    """Each replica is a server: 4 of 8 ranks decode, not those of the other one."""
    ctx = context("wan2.1-t2v-14b", num_gpus=8)
    assert errors(ctx, ulysses=4, dp=2, vae_patch=4) == set()
    assert errors(ctx, ulysses=4, dp=2, vae_patch=8) == {"vae-patch-world"}
    problem = found(ctx, ulysses=4, dp=2, vae_patch=8)["vae-patch-world"]
    assert "and there are 4" in problem.message
    assert problem.legal_values == ("1", "2", "4")
