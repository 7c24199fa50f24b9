"""Laws of the whole: sums, identity, monotonicity, rooflines, vectorised against one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.api.table import build_table, legality, search_space
from perfmodel.pipeline.evaluate import STAGES, evaluate
from perfmodel.pipeline.lines import distinct, expose, plain_line
from perfmodel.pipeline.request_width import prior_share
from perfmodel.pipeline.uncertainty import difference_halfwidth_s, halfwidth_s, run_frac
from perfmodel.search.enumerate import candidates, factorizations
from perfmodel.search.explain import speedup_loss_s, terms_s
from perfmodel.search.rank import rank
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload


@pytest.fixture(scope="module")
def table():
    session = open_session(Workload(frames=81), catalog.parse_gpus("4xB300"))
    found = legality(session, search_space(session))
    return build_table(session, found.layouts.take(found.legal))


SINGLE = ParallelConfig()


def latency(gpus="1xB300", config=SINGLE, options=None, **workload):
    session = open_session(
        Workload(**{"frames": 81, **workload}), catalog.parse_gpus(gpus), options=options
    )
    return float(evaluate(session.job, Layouts.of([config])).latency_s[0])


def test_stages_sum_to_the_latency_and_terms_too(table):
    evaluation = table.evaluation
    stages = sum(evaluation.stages[name].total_s for name in STAGES)
    assert np.allclose(stages, evaluation.latency_s, rtol=1e-12)
    assert np.allclose(sum(terms_s(evaluation).values()), evaluation.latency_s, rtol=1e-9)


def test_columns_equal_one_by_one(table):
    layouts = table.evaluation.layouts
    for row in range(0, len(layouts), 17):
        alone = evaluate(table.session.job, layouts.take(np.array([row])))
        for name in STAGES:
            assert alone.stages[name].total_s[0] == pytest.approx(
                table.evaluation.stages[name].total_s[row], rel=1e-12
            )


@pytest.mark.parametrize("ring", [2, 4])
def test_a_ring_hides_behind_all_chunks_but_the_last(ring):
    session = open_session(
        Workload(model="flux.1-dev"), catalog.parse_gpus(f"{ring}xL20"), engine="xdit"
    )

    def seconds(overlap, name):
        terms = {**session.job.machine.terms, "ring_overlap_frac": overlap}
        job = replace(session.job, machine=replace(session.job.machine, terms=terms))
        lines = evaluate(job, Layouts.of([ParallelConfig(ring=ring)])).stages["denoise"].lines
        return [float(line.total_s[0]) for line in lines if line.name.endswith(name)]

    sends, hidden = seconds(0.0, "ring send k, v"), seconds(1.0, "ring send k, v")
    later = seconds(0.0, ", ring chunk")
    assert len(sends) == len(later) == 2
    # A link of the host carries a chunk's keys and values for longer than the chunk computes.
    assert hidden == pytest.approx([s - c for s, c in zip(sends, later, strict=True)])


def test_one_device_sends_nothing_and_waits_for_nobody(table):
    denoise = table.evaluation.stages["denoise"]
    for kind in ("collective", "wait"):
        assert denoise.part_s((kind,))[table.single] == 0.0


def test_losses_lead_from_the_ideal_to_the_latency(table):
    evaluation, single = table.evaluation, table.single
    for row in range(0, len(evaluation.layouts), 13):
        world = int(evaluation.layouts.world_size[row])
        ideal = evaluation.latency_s[single] / world
        losses = sum(speedup_loss_s(evaluation, row, single).values())
        expected = evaluation.latency_s[row] if world > 1 else ideal
        assert ideal + losses == pytest.approx(expected, rel=1e-9)


def losses_of(model, gpus, **degrees):
    session = open_session(Workload(model=model), catalog.parse_gpus(gpus))
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(**degrees)])
    found = evaluate(session.job, layouts)
    return found, speedup_loss_s(found, 1, 0)


def test_layers_that_tensor_parallelism_leaves_whole_are_undivided_work():
    # FLUX's single blocks project with replicated layers: half of these is beyond a GPU's part
    found, losses = losses_of("flux.1-dev", "2xA100-SXM-80G", tp=2)
    lines = {line.name: line for line in found.stages["denoise"].lines}
    whole = lines["single output"], lines["single feed-forward in"]
    for line in whole:
        index = found.stages["denoise"].index
        assert line.flops[index[0]] == line.flops[index[1]] > 0
    half_s = sum(float(line.total_s[index[1]]) for line in whole) / 2
    assert half_s < losses["undivided_work"] < 1.3 * half_s
    assert losses["smaller_kernels"] < 0.1 * half_s


def test_divided_tokens_leave_little_undivided():
    found, losses = losses_of("cosmos3-nano", "4xB300", cfg=2, ulysses=2)
    assert 0 <= losses["undivided_work"] < 0.01 * found.latency_s[1]
    assert losses["smaller_kernels"] > 0


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_latency_grows_with_steps(first, second):
    low, high = sorted((first, second))
    assert latency(steps=low) <= latency(steps=high)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_latency_grows_with_frames(first, second):
    low, high = sorted((1 + 4 * first, 1 + 4 * second))
    assert latency(frames=max(low, 5)) <= latency(frames=max(high, 5)) * (1 + 1e-9)


def test_latency_grows_with_guidance_branches():
    assert latency(guidance=1.0) < latency(guidance=6.0)


def test_faster_hardware_is_never_slower():
    session = open_session(Workload(frames=81), catalog.parse_gpus("4xB300"))
    layouts = Layouts.of([ParallelConfig(cfg=2, ulysses=2, vae_patch=4), ParallelConfig(tp=4)])
    before = evaluate(session.job, layouts).latency_s
    machine = session.job.machine
    quick = replace(machine, rates=machine.rates.scaled(2.0))
    after = evaluate(replace(session.job, machine=quick), layouts).latency_s
    assert (after <= before).all()


def test_no_operator_beats_its_roof(table):
    for stage in table.evaluation.stages.values():
        for line in stage.lines:
            if line.kind in ("attention", "gemm", "conv", "pointwise", "copy"):
                assert (line.total_s >= line.roof_s * (1 - 1e-9)).all(), line.name


def test_intervals_hold_the_prediction_and_a_difference_cancels_shared_error(table):
    evaluation = table.evaluation
    rows = np.arange(len(evaluation.layouts))
    width = halfwidth_s(evaluation)
    assert (width > 0).all()
    assert difference_halfwidth_s(evaluation, rows, rows[:1])[0, 0] == 0.0
    # A configuration that differs only in VAE tiling shares the whole denoise error.
    layouts = evaluation.layouts
    same = np.flatnonzero((layouts.cfg == 2) & (layouts.ulysses == 2) & (layouts.hsdp == 1))
    a, b = int(same[0]), int(same[1])
    difference = difference_halfwidth_s(evaluation, np.array([b]), np.array([a]))[0, 0]
    assert difference < 0.7 * np.hypot(width[a], width[b])


PLAIN = {"run": 0.1, "run.lent": 1.0, "run.prior": 1.0, "run.rare": 1.0, "run.short": 1.0}
FEW = Layouts.of([ParallelConfig(), ParallelConfig(cfg=2, ulysses=2, vae_patch=4)])


def request(gpus="4xH100", **options):
    session = open_session(
        Workload(frames=81), catalog.parse_gpus(gpus), options=Options(**options)
    )
    return evaluate(session.job, FEW)


def under(evaluation, **spread):
    return replace(evaluation, job=replace(evaluation.job, spread={**PLAIN, **spread}))


def widening(evaluation, **spread):
    """How many times wider the log range of each request is than that of a plain one."""
    found = under(evaluation, **spread)
    log = np.log1p(halfwidth_s(found) / found.latency_s)
    return log / 0.1


def test_the_range_of_a_request_is_the_product_of_the_factors_of_what_is_uncertain():
    one = request()
    assert widening(one) == pytest.approx(1.0)
    share = prior_share(one)
    assert ((share > 0) & (share < 1)).all()
    assert widening(one, **{"run.prior": 2.0}) == pytest.approx(2.0**share)
    step_s = one.stages["denoise"].total_s / one.job.shape.steps
    assert step_s[0] > 1.0 > step_s[1]
    short = 1.5 ** np.array([0.0, -np.log10(step_s[1])])
    assert widening(one, **{"run.short": 1.5}) == pytest.approx(short)
    both = widening(one, **{"run.prior": 2.0, "run.short": 1.5})
    assert both == pytest.approx(2.0**share * short)


@pytest.mark.parametrize(
    ("gpus", "options", "lent", "rare"),
    [
        ("4xH100", {}, False, False),
        ("4xL20", {}, True, False),
        ("4xH100", {"dtype": "fp8"}, False, True),
        ("4xH100", {"offload": "layerwise"}, False, True),
        ("4xH100", {"offload": "model"}, False, False),
        ("4xH100", {"attention_density": 0.4}, False, True),
        ("4xL20", {"cache_skip": 0.3, "cache_method": "tea_cache"}, True, True),
    ],
)
def test_what_makes_a_request_uncertain(gpus, options, lent, rare):
    one = request(gpus, **options)
    assert widening(one, **{"run.lent": 1.7}) == pytest.approx(1.7 if lent else 1.0)
    assert widening(one, **{"run.rare": 1.3}) == pytest.approx(1.3 if rare else 1.0)


def test_without_runs_of_an_engine_lent_laws_are_known_less_well():
    fitted, lent = (
        halfwidth_s(one) / one.latency_s
        for one in (
            replace(e, job=replace(e.job, spread={})) for e in (request(), request("4xL20"))
        )
    )
    assert (lent > 1.3 * fitted).all()


def test_a_cache_that_does_not_say_what_it_skips_widens_the_range():
    stated = request(cache_method="tea_cache", cache_skip=0.3)
    named = request(cache_method="tea_cache")
    assert "cache" not in stated.job.spread
    prior_s = named.job.spread["cache"] * named.stages["denoise"].total_s
    whole_s = halfwidth_s(replace(named, job=replace(named.job, spread=stated.job.spread)))
    assert halfwidth_s(named) == pytest.approx(np.hypot(whole_s, prior_s))


def test_what_the_kinds_do_not_explain_scales_the_stages_and_both_sides_of_a_difference():
    one = request()
    a, b = np.array([0]), np.array([1])
    narrow, wide = under(one, run=0.01), under(one, run=0.4)
    # Narrower than the errors of its kinds, half the variance of a request is common to all of it;
    assert run_frac(narrow) == pytest.approx(np.expm1(0.01) * np.sqrt(0.5))
    # wider, what they leave. Of it a difference has its own share, a stage its own.
    run = run_frac(wide)
    assert (run > np.expm1(0.4) * np.sqrt(0.5)).all()
    gap_s = abs(one.latency_s[0] - one.latency_s[1])
    denoise_s = one.stages["denoise"].total_s
    kinds = [
        (
            difference_halfwidth_s(x, a, b)[0, 0] ** 2 - (run_frac(x).max() * gap_s) ** 2,
            halfwidth_s(x, ("denoise",)) ** 2 - (run_frac(x) * denoise_s) ** 2,
        )
        for x in (narrow, wide)
    ]
    assert kinds[0][0] > 0
    assert (kinds[0][1] > 0).all()
    assert kinds[0][0] == pytest.approx(kinds[1][0])
    assert kinds[0][1] == pytest.approx(kinds[1][1])


def test_no_tie_is_beaten_by_another_tie():
    """Rings and weight gathers have errors of their own: each ties with the best, not together."""
    session = open_session(
        Workload(model="wan2.2-i2v-a14b"), catalog.parse_gpus("4xH100"), engine="xdit"
    )
    found = legality(session, search_space(session))
    evaluation = build_table(session, found.layouts.take(found.legal)).evaluation
    size = len(evaluation.layouts)
    memory = np.arange(size, dtype=float)[::-1] * 2.0**31  # the slower, the smaller
    order = np.argsort(evaluation.latency_s)
    peak = np.empty(size)
    peak[order] = memory
    ranking = rank(evaluation, np.ones(size, bool), evaluation.latency_s, peak)
    tied = ranking.order[ranking.tied]
    assert len(tied) > 1
    behind = evaluation.latency_s[tied][:, None] - evaluation.latency_s[tied]
    assert (behind <= difference_halfwidth_s(evaluation, tied, tied)).all()
    assert peak[tied[0]] == peak[tied].min()


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 1))
def test_exposed_time_of_a_pair(transfer, compute, overlap):
    line = plain_line(
        "denoise",
        "x",
        "collective",
        np.array([transfer]),
        count=1,
        bound="links",
        provenance="prior",
    )
    exposed = expose(line, np.array([compute]), overlap).total_s[0]
    pair = max(transfer, compute) + (1 - overlap) * min(transfer, compute)
    assert exposed == pytest.approx(pair - compute, abs=1e-9)
    assert -1e-9 <= exposed <= transfer + 1e-9


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_distinct_rows(rows):
    first, index = distinct(
        np.array([a for a, _ in rows]), np.array([b for _, b in rows]), size=len(rows)
    )
    assert [rows[i] for i in first[index]] == rows
    assert len(first) == len(set(rows))


@given(st.integers(1, 64), st.integers(1, 4))
def test_factorizations_are_complete(number, parts):
    found = list(factorizations(number, parts))
    assert all(np.prod(f) == number for f in found)
    assert len(set(found)) == len(found)
    # Number of ordered factorisations: product over primes of C(e + parts - 1, parts - 1).
    expected, rest, prime = 1, number, 2
    while rest > 1:
        exponent = 0
        while rest % prime == 0:
            rest //= prime
            exponent += 1
        expected *= _choose(exponent + parts - 1, parts - 1)
        prime += 1
    assert len(found) == expected


def _choose(n: int, k: int) -> int:
    from math import comb

    return comb(n, k)


def test_candidates_hold_the_layouts_people_try():
    layouts = candidates(8)
    ids = {layouts.row(i).config_id for i in range(len(layouts))}
    assert {
        "single",
        "tiling",
        "cfg2_usp4_vaepp8",
        "usp8",
        "ring8",
        "tp8",
        "cfg2_usp2_ring2",
        "cfg2_usp4_hsdp8",
        "cfg2_usp4_hsdp4x2_vaepp8",
        "hsdp8",
    } <= ids
    assert len(ids) == len(layouts)


def test_ranking_does_not_depend_on_the_order_of_candidates(table):
    evaluation, memory = table.evaluation, table.memory
    forward = rank(evaluation, memory.fits, evaluation.latency_s, memory.peak_bytes)
    turned = np.arange(len(evaluation.layouts))[::-1]
    again = evaluate(table.session.job, evaluation.layouts.take(turned))
    back = rank(again, memory.fits[turned], again.latency_s, memory.peak_bytes[turned])
    names = [evaluation.layouts.row(int(r)).config_id for r in forward.order[:5]]
    names_back = [again.layouts.row(int(r)).config_id for r in back.order[:5]]
    assert names == names_back


def test_hsdp_alone_repeats_the_compute_and_costs_time(table):
    layouts = table.evaluation.layouts
    alone = np.flatnonzero(
        (layouts.hsdp == 4)
        & (layouts.cfg * layouts.sequence_parallel * layouts.tp == 1)
        & (layouts.vae_patch == 1)
    )[0]
    denoise = table.evaluation.stages["denoise"].total_s
    assert denoise[alone] > denoise[table.single]


def test_fast_path_is_lossless_and_faster():
    off = latency(options=Options(vae_fast_path="off"))
    assert latency(options=Options(vae_fast_path="lossless")) < off


def test_a_tie_is_not_ordered_by_less_memory_than_the_grain(table):
    evaluation = table.evaluation
    scores = evaluation.latency_s
    allowed = np.ones(len(scores), bool)
    half = 72.5 * 2.0**30
    near = half + np.where(np.arange(len(scores)) % 2, 1e6, -1e6)
    ranking = rank(evaluation, allowed, scores, near)
    tied = ranking.order[ranking.tied]
    close = [row for row in tied if scores[row] <= 1.02 * scores.min()]
    assert list(scores[close]) == sorted(scores[close])
    assert ranking.order[0] == np.argmin(scores)
