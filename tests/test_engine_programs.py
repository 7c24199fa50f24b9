"""What the programs of an engine have no flag for is refused, and their commands read back."""

from __future__ import annotations

import shlex

import pytest

from perfmodel import engines, predict, recommend
from perfmodel.api.session import open_session
from perfmodel.engines.legality import problems
from perfmodel.errors import PerfmodelError
from perfmodel.report.answer import Answer
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.workload import Options, Workload

COSMOS = "cosmos-official"


def refusals(engine: str, job: Workload, gpus: str = "4xH100-SXM", **options: object) -> list[str]:
    with pytest.raises(PerfmodelError) as caught:
        recommend(job, gpus, engine=engine, options=Options(**options))
    return [problem.rule_id for problem in caught.value.problems]


def ids(answer: Answer) -> set[str]:
    return {row.config_id for row in answer.recommendations}


# The examples of cosmos-predict2 1.0.9: pipelines/{text2image,video2world}.py, datasets/utils.py.


@pytest.mark.parametrize(
    ("slug", "fields"),
    [
        ("cosmos-predict2-2b-t2i", {"steps": 20}),
        ("cosmos-predict2-2b-v2w", {"steps": 50}),
        ("cosmos-predict2-2b-v2w", {"frames": 61}),
        ("cosmos-predict2-2b-v2w", {"fps": 24.0}),
        ("cosmos-predict2-2b-v2w", {"width": 832, "height": 480}),
        ("cosmos-predict2-14b-t2i", {"width": 1280, "height": 704}),
    ],
)
def test_what_the_examples_have_no_flag_for_is_refused(slug, fields):
    assert refusals(COSMOS, Workload(model=slug, **fields)) == ["program-request"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"frames": 61, "fps": 10.0}, {"width": 768, "height": 432}, {"width": 960, "height": 960}],
)
def test_what_the_examples_make_reads_back_from_their_command(fields):
    job = Workload(model="cosmos-predict2-2b-v2w", **fields)
    first = recommend(job, "4xH100-SXM", engine=COSMOS).recommendations[0]
    words = shlex.split(first.commands.request.splitlines()[-1])
    read = engines.engine(COSMOS).read_launch(words)
    again = predict(Workload(), "4xH100-SXM", engine=COSMOS, launch=words)
    assert read.problems == ()
    assert (again.prediction.config_id, again.prediction.latency_ms) == (
        first.config_id, first.latency_ms,
    )  # fmt: skip
    size = {"width": 1280, "height": 704, "frames": 93, "fps": 16, **fields}
    assert {name: read.request[name] for name in size} == size


def test_text_to_image_has_no_context_parallelism():
    answer = recommend(Workload(model="cosmos-predict2-2b-t2i"), "4xH100-SXM", engine=COSMOS)
    assert ids(answer) == {"single"}
    command = answer.recommendations[0].commands.request
    assert "torchrun" not in command
    assert "refiner" not in command  # pipelines/text2image.py has none
    assert "--aspect_ratio 16:9" in command


def test_processes_that_repeat_an_image_are_told():
    words = ["torchrun", "--nproc_per_node=4", "examples/text2image.py", "--model_size", "2B"]
    found = engines.engine(COSMOS).read_launch(words)
    assert found.parallel.world_size == 1
    assert [problem.rule_id for problem in found.problems] == ["launch-processes"]
    shared = ["torchrun", "--nproc_per_node=4", "examples/video2world.py", "--num_gpus", "4"]
    assert engines.engine(COSMOS).read_launch(shared).problems == ()


def test_ranks_share_whole_latent_frames():
    """24 latent frames over 16 ranks stop ``split_inputs_cp``; 8 divide them."""
    answer = recommend(Workload(model="cosmos-predict2-2b-v2w"), "16xH100-SXM", engine=COSMOS)
    assert "usp8" in ids(answer)
    assert "usp16" not in ids(answer)
    assert {row.rule for row in answer.rejected if row.count} >= {"cosmos-frames"}


# Dtypes


@pytest.mark.parametrize(
    ("engine", "slug", "dtype"),
    [
        ("wan-official", "wan2.1-t2v-14b", "fp8"),
        ("wan-official", "wan2.2-t2v-a14b", "int8"),
        (COSMOS, "cosmos-predict2-14b-v2w", "fp8"),
        ("xdit", "wan2.1-t2v-14b", "int8"),
        ("xdit", "ltx-2.3", "fp8"),
        ("xdit", "cogvideox-5b", "fp8"),
        ("diffusers", "wan2.1-t2v-14b", "nvfp4"),
    ],
)
def test_a_dtype_that_no_flag_sets_up_is_refused(engine, slug, dtype):
    gpus = "2xB200" if dtype == "nvfp4" else "2xH100-SXM"
    found = refusals(engine, Workload(model=slug), gpus, dtype=dtype)
    assert found == ["dtype-not-in-engine"]


@pytest.mark.parametrize(
    ("engine", "slug", "dtype", "words"),
    [
        ("xdit", "z-image", "int8", "--gemm_quantization int8"),
        ("xdit", "wan2.2-t2v-a14b", "fp8", "--gemm_quantization fp8"),
        ("sglang-diffusion", "wan2.1-t2v-14b", "int8", "--quantization convrot_int8"),
        ("sglang-diffusion", "wan2.1-t2v-14b", "fp8", "--quantization fp8"),
        ("diffusers", "wan2.1-t2v-14b", "fp8", "Float8DynamicActivationFloat8WeightConfig"),
    ],
)
def test_a_dtype_that_is_ranked_is_set_up_by_the_command(engine, slug, dtype, words):
    answer = recommend(
        Workload(model=slug), "2xH100-SXM", engine=engine, options=Options(dtype=dtype)
    )
    assert words in answer.recommendations[0].commands.serve


def test_lossy_candidates_are_those_that_can_be_started():
    job = Workload(model="wan2.1-t2v-14b")
    answer = recommend(job, "2xH100-SXM", engine="wan-official", allow_lossy=True)
    assert all("fp8" not in name for name in ids(answer))
    assert "dtype-not-in-engine" in {warning.rule_id for warning in answer.warnings}
    plain = recommend(job, "2xH100-SXM", engine="wan-official")
    assert [choice.title for choice in plain.lossy_options] == ["step cache"]
    other = recommend(job, "2xH100-SXM", engine="xdit")
    assert [choice.title for choice in other.lossy_options] == ["fp8 linears", "step cache"]


# The VAE's data movement


@pytest.mark.parametrize(
    ("engine", "own", "legal"),
    [
        ("diffusers", "off", {"off"}),
        ("xdit", "off", {"off"}),
        ("wan-official", "off", {"off"}),
        # Its CUDA VAE modules are channels-last at the default quality of a request.
        ("sglang-diffusion", "channels_last", {"channels_last"}),
        ("vllm-omni", "lossless", {"off", "lossless", "channels_last"}),
        ("vllm-omni@0.28.0", "off", {"off"}),
    ],
)
def test_a_data_movement_of_the_vae_that_no_flag_sets_is_refused(engine, own, legal):
    job, found = Workload(model="wan2.1-t2v-1.3b"), {}
    for asked in ("off", "lossless", "channels_last"):
        session = open_session(job, "1xB200", engine=engine, options=Options(vae_fast_path=asked))
        broken = problems(session.engine.rules(), session.context, ParallelConfig())
        found[asked] = [problem.rule_id for problem in broken if problem.severity == "error"]
    assert {asked for asked in found if not found[asked]} == legal
    assert all(ids in ([], ["vae-fast-path"]) for ids in found.values())
    session = open_session(job, "1xB200", engine=engine)
    assert session.behaviour.traits.vae_fast_path == own


@pytest.mark.parametrize(
    ("engine", "slug"), [("wan-official", "wan2.1-t2v-14b"), (COSMOS, "cosmos-predict2-2b-t2i")]
)
def test_programs_without_a_flag_are_not_compiled(engine, slug):
    assert refusals(engine, Workload(model=slug), compile=True) == ["compile-flag"]
    assert recommend(
        Workload(model=slug), "1xH100-SXM", engine=engine, options=Options(compile=False)
    )


@pytest.mark.parametrize(
    ("gpus", "kernel", "legal"),
    [
        ("1xH100-SXM", "CUDNN_ATTN", ("CUDNN_ATTN", "FLASH_ATTN")),
        ("1xB200", "CUDNN_ATTN", ("CUDNN_ATTN",)),
        ("1xL40S", "TORCH_SDPA", ("TORCH_SDPA",)),
        ("1xB300", "TORCH_SDPA", ("TORCH_SDPA",)),
    ],
)
def test_the_device_picks_the_attention_of_cosmos(gpus, kernel, legal):
    """cosmos-predict2 1.0.9 ``module/attention.py``: cuDNN on capabilities 9.0 and 10.0."""
    job = Workload(model="cosmos-predict2-2b-v2w")
    behaviour = open_session(job, gpus, engine=COSMOS).behaviour
    assert (behaviour.attention_backend, behaviour.attention_available) == (kernel, legal)


@pytest.mark.parametrize("slug", ["flux.1-fill-dev", "wan2.2-i2v-a14b"])
def test_xdit_shares_whole_tiles_where_it_is_told_to_tile(slug):
    """``vae_manager.py``: --enable_tiling with --use_parallel_vae hands tiles to the ranks."""
    job, options = Workload(model=slug), Options(vae_tiling="on")
    answer = recommend(job, "4xB200", engine="xdit", options=options)
    first = next(row for row in answer.recommendations if row.parallel.vae_patch_parallel_size > 1)
    words = shlex.split(first.commands.request.splitlines()[-1])
    assert {"--enable_tiling", "--use_parallel_vae"} <= set(words)
    again = predict(Workload(), "4xB200", engine="xdit", launch=words).prediction
    assert (again.config_id, again.latency_ms) == (first.config_id, first.latency_ms)
    bands = predict(job, "4xB200", engine="xdit", parallel=first.config_id).prediction
    assert bands.stages_ms.vae_decode < first.stages_ms.vae_decode


def test_sglang_is_told_to_tile_where_bands_decode_and_the_encode_is_tiled():
    """``vaes/common.py``: bands are looked for before tiles in a decode, not in an encode."""
    job, options = Workload(model="qwen-image-edit"), Options(vae_tiling="on")
    answer = recommend(job, "2xH100-SXM", engine="sglang-diffusion", options=options)
    first = next(row for row in answer.recommendations if row.parallel.vae_patch_parallel_size > 1)
    words = shlex.split(first.commands.serve.splitlines()[-1])
    again = predict(Workload(), "2xH100-SXM", engine="sglang-diffusion", launch=words).prediction
    assert (again.latency_ms, again.peak_memory_gib) == (first.latency_ms, first.peak_memory_gib)


# xDiT 0.7.0: ModelCapabilities of model_executor/models/runner_models/*.py.


@pytest.mark.parametrize(
    ("slug", "missing"),
    [
        ("wan2.1-t2v-14b", "cfg=2"),
        ("wan2.2-t2v-a14b", "cfg=2"),
        ("hunyuanvideo-1.5", "ulysses=2,hsdp=2"),
        ("flux.1-kontext-dev", "pp=2"),
    ],
)
def test_xdit_refuses_an_axis_that_its_runner_refuses(slug, missing):
    with pytest.raises(PerfmodelError) as caught:
        predict(Workload(model=slug), "2xH100-SXM", engine="xdit", parallel=missing)
    assert "engine-axis" in [problem.rule_id for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        ("wan2.2-i2v-a14b", ""),
        ("qwen-image-edit-2509", ""),
        ("hunyuanvideo", "--model tencent/HunyuanVideo"),
        ("cogvideox-5b", "has not registered this checkpoint"),
        ("pixart-sigma-xl-1024", "has not registered this checkpoint"),
    ],
)
def test_a_checkpoint_that_the_runner_of_xdit_stops_at_is_told(slug, said):
    answer = recommend(Workload(model=slug), "1xH100-SXM", engine="xdit")
    text = answer.recommendations[0].commands.serve
    assert said in text
    assert ("registe" in text) == bool(said)
