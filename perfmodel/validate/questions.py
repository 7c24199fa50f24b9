"""From a measured run to the question that predicts it, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from pydantic import ValidationError

from perfmodel import catalog
from perfmodel.api.session import Session, open_session
from perfmodel.catalog.problems import problems_of
from perfmodel.engines import engine_names
from perfmodel.engines.releases import read_number
from perfmodel.engines.sources import day_of_run
from perfmodel.errors import PerfmodelError
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import KEY_ALIASES, KEYS, ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Options, Workload

STAGE_ONLY = (
    "vae_decode",
    "vae_encode",
    "text_encode",
    "video_encode",
    "denoise_per_step",
    "transformer_forward",
)
"""Keys that a prediction does not need the number of steps for."""

DTYPES = {
    None: "bf16",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "int8": "int8",
    "nvfp4": "nvfp4",
    # torchao: dynamic quantisation multiplies in 8 bits; weight-only quantisation does not.
    "fp8dq": "fp8",
    "fp8dqrow": "fp8",
    "int8dq": "int8",
    "int8wo": "int8wo",
    "fp8wo": "fp8wo",
    "fp6_e3m2": "fp6wo",
    "fp6wo": "fp6wo",
    "nf4": "nf4",
    # diffusers' layerwise casting
    "fp8-storage": "fp8cast",
    "fp8cast": "fp8cast",
}

VIDEO_TASKS = ("t2v", "i2v", "v2v", "ti2v")
OFFLOADS = {
    None: "none",
    "none": "none",
    "model": "model",
    "layerwise": "layerwise",
    "text-encoder": "text-encoder",
    "layerwise-gather": "layerwise-gather",
    "distributed-layerwise (all-gather)": "layerwise-gather",
    # Each rank streams whole blocks: what plain layerwise offload does.
    "distributed-layerwise (no all-gather)": "layerwise",
}

BACKENDS = {
    "SAGE": "SAGE_ATTN",
    "CUDNN": "CUDNN_ATTN",
    "FA2": "FLASH_ATTN",
    "FA3": "FLASH_ATTN",
    "FLASH_ATTN": "FLASH_ATTN",
    "FA4": "FLASH_ATTN",
    "AITER": "FLASH_ATTN",
    "SDPA": "TORCH_SDPA",
    "XFORMERS": "XFORMERS",
    "TRTLLM": "TRTLLM_ATTN",
    "SAGE3": "SAGE_ATTN_3",
    "FLASHINFER": "FLASHINFER_ATTN",
    # the engines' own spelling, as in records made here
    "CUDNN_ATTN": "CUDNN_ATTN",
    "TORCH_SDPA": "TORCH_SDPA",
    "FLASHINFER_ATTN": "FLASHINFER_ATTN",
    "TRTLLM_ATTN": "TRTLLM_ATTN",
    "SAGE_ATTN": "SAGE_ATTN",
    "ASCEND": "ASCEND",
    "NATTEN-sparse": "NATTEN",
}
CACHES = {
    "teacache": "tea_cache",
    "fbcache": "fb_cache",
    "firstblock": "fb_cache",
    "cachedit": "cache_dit",
    "dbcache": "cache_dit",
    "magcache": "mag_cache",
    "seacache": "sea_cache",
}
"""Step caches by how sources spell them."""
SPARSE_BACKENDS = frozenset({"NATTEN-sparse"})
"""Backends whose density an engine states for its models."""

VAE_ON_ALL_RANKS = frozenset({"sglang-diffusion"})
"""Engines whose release divides a video decode over all ranks unless told otherwise."""

FILLS_WITH_SEQUENCE = frozenset({"sglang-diffusion"})
"""Engines that give GPUs without a degree to sequence parallelism.

Source: https://pypi.org/project/sglang/0.5.23/ ``server_args.py _adjust_parallelism``.
"""

MOST_RANKS = 100_000
"""More devices than any machine that is described here."""

GUIDED_DEFAULT = 5.0
"""Guidance scale of a run that states a second branch but no scale (any value above 1 is alike)."""


class Skip(Exception):
    """A record that cannot be predicted, and why."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask for a record.

    Attributes:
        assumed: fields that the record leaves open.
        host: the machine that ran it, where it has terms of its own.
    """

    workload: Workload
    system: System
    engine: str
    options: Options
    parallel: ParallelConfig
    assumed: tuple[str, ...]
    host: str | None = None

    def session(self) -> Session:
        """The question resolved."""
        return open_session(
            self.workload,
            self.system,
            engine=self.engine,
            options=self.options,
            host=self.host,
        )


@cache
def _system(gpu: str, num_gpus: int, nodes: int, sockets: int | None) -> System:
    split = f"{nodes}x{num_gpus // nodes}" if nodes > 1 and num_gpus % nodes == 0 else f"{num_gpus}"
    return catalog.parse_gpus(f"{split}x{gpu}", catalog.Overrides(sockets=sockets))


GENERIC_ENGINE = "diffusers"
"""What stands for an engine that is not known, or does not know the model: the model's modules."""


def question(record: RunRecord, *, engine: str | None = None) -> Question:
    """The question behind `record`.

    Args:
        record: a measured run.
        engine: asked instead of the record's.

    Raises:
        Skip: the reason, in a few words.
    """
    if record.gpu is None:
        raise Skip("GPU unknown")
    assumed: list[str] = []
    if engine is not None or record.engine not in engine_names():
        record = record.model_copy(
            update={"engine": engine or GENERIC_ENGINE, "engine_version": None}
        )
        assumed.append("engine")
    try:
        system = _system(record.gpu, record.num_gpus or 1, record.nodes or 1, record.sockets)
        slug = catalog.load_model(record.model).slug
    except PerfmodelError as error:
        raise Skip(_first_words(error)) from None
    _refuse_unmodelled(record)
    parallel = _parallel(record)
    return Question(
        workload=_workload(record, slug, parallel, assumed),
        system=system,
        engine=_engine(record, assumed),
        options=_options(record, parallel, assumed),
        parallel=parallel,
        assumed=tuple(assumed),
        host=catalog.host_of(record.engine, record.source, record.gpu),
    )


def _first_words(error: PerfmodelError) -> str:
    return error.problems[0].message.split(";")[0]


def _refuse_unmodelled(record: RunRecord) -> None:
    if record.steps is None and not set(record.measured_ms) & set(STAGE_ONLY):
        raise Skip("steps unknown")
    if record.task in VIDEO_TASKS and None in (record.width, record.height, record.frames):
        raise Skip("size of the video unknown")
    stated = record.attention_density is not None or record.attention_backend in SPARSE_BACKENDS
    if record.sparse_attention and not stated:
        raise Skip("sparse attention of an unstated density")
    if record.dtype not in DTYPES:
        raise Skip(f"dtype {record.dtype} is not modelled")
    if record.offload not in OFFLOADS:
        raise Skip(f"offload {record.offload} is not modelled")


def replicas(record: RunRecord) -> int:
    """Replicas of the model, each of which takes a request."""
    return record.parallel.get("data_parallel_size", record.parallel.get("dp")) or 1


def _parallel(record: RunRecord) -> ParallelConfig:
    degrees: dict[str, int] = {}
    ranks = record.num_gpus or 1
    if record.engine in VAE_ON_ALL_RANKS and record.engine_version and (record.frames or 1) > 1:
        degrees["vae_patch"] = ranks
    for name, value in record.parallel.items():
        key = KEY_ALIASES.get(name, name)
        if value is None:
            raise Skip(f"{name} unknown")
        if not 1 <= value <= MOST_RANKS:
            raise Skip(f"{name}={value}: a degree is a whole number from 1 to {MOST_RANKS}")
        if value == 1:
            continue
        if key not in KEYS:
            raise Skip(f"{name}={value} is not modelled")
        degrees[key] = value
    config = ParallelConfig(**degrees)  # type: ignore[arg-type]
    mesh = replace(config, hsdp=1, hsdp_replicate=1).world_size
    if record.engine in FILLS_WITH_SEQUENCE and ranks > mesh and ranks % mesh == 0:
        degrees["ulysses"] = degrees.get("ulysses", 1) * (ranks // mesh)
        config = ParallelConfig(**degrees)  # type: ignore[arg-type]
    if config.hsdp > 1 and config.hsdp_replicate == 1 and config.world_size % config.hsdp == 0:
        degrees["hsdp_replicate"] = config.world_size // config.hsdp
    tiling = bool(record.vae_tiling) and config.vae_patch == 1
    return ParallelConfig(**degrees, vae_tiling=tiling)


def _workload(
    record: RunRecord, slug: str, parallel: ParallelConfig, assumed: list[str]
) -> Workload:
    fields: dict[str, object] = {"model": slug}
    for name, value in (
        ("task", record.task),
        ("width", record.width),
        ("height", record.height),
        ("frames", record.frames),
        ("fps", record.fps),
        ("steps", record.steps),
        ("guidance", _guidance(record, parallel)),
    ):
        if value is None:
            assumed.append(name)
        else:
            fields[name] = value
    fields["forwards"] = record.forwards
    if record.task == "i2i" and isinstance(record.ref_images, int) and record.ref_images > 0:
        fields["input_images"] = record.ref_images
    # Outputs are counted over all requests that run at once.
    outputs = -(-(record.num_outputs or 1) // (record.concurrency or 1))
    fields["batch"] = (record.batch or 1) * outputs
    try:
        return Workload.model_validate(fields)
    except ValidationError as error:
        raise Skip(f"workload: {_reason(error)}") from None


def _reason(error: ValidationError) -> str:
    """Field, value and what would be right of everything that is out of range."""
    found = problems_of(error, Workload, "", "workload")
    return "; ".join(problem.message.removeprefix(": ") for problem in found)


def _guidance(record: RunRecord, parallel: ParallelConfig) -> float | None:
    """Guidance scale, or what the second branch (or its absence) implies."""
    if record.cfg is False and parallel.cfg == 1:
        return 1.0
    if record.guidance_scale is not None and (record.guidance_scale > 1 or not record.cfg):
        return record.guidance_scale
    if record.cfg or parallel.cfg > 1:
        return GUIDED_DEFAULT
    return None


def version_of(record: RunRecord) -> tuple[str | None, bool]:
    """The release of the engine that ran, else the day of the source; whether it is the release.

    None where neither is known.
    """
    number = (record.engine_version or "").split(maxsplit=1)[:1]
    if number and read_number(number[0]) is not None:
        return number[0], True
    return day_of_run(record.engine, record.source or "", record.source_date), False


def _engine(record: RunRecord, assumed: list[str]) -> str:
    """Engine at the record's version, or at the day of its source where it names none."""
    version, stated = version_of(record)
    if not stated:
        assumed.append("engine_version")
    return f"{record.engine}@{version}" if version else record.engine


def _cache(named: object) -> str:
    """The method that a record names, however it is spelt; else any."""
    words = str(named).lower().replace("-", "").replace("_", "")
    return next((method for word, method in CACHES.items() if word in words), "step_cache")


def _options(record: RunRecord, parallel: ParallelConfig, assumed: list[str]) -> Options:
    fields: dict[str, object] = {
        "dtype": DTYPES[record.dtype],
        "offload": OFFLOADS[record.offload],
    }
    backend = BACKENDS.get(record.attention_backend or "")
    if backend is None:
        assumed.append("attention_backend")
    else:
        fields["attention_backend"] = backend
    if record.cache_skip is not None:
        fields["cache_skip"] = record.cache_skip
    elif record.cache:
        fields["cache_method"] = _cache(record.cache)
        assumed.append("cache_skip")
    if record.attention_density is not None:
        fields["attention_density"] = record.attention_density
    if record.compile is None:
        assumed.append("compile")
    else:
        fields["compile"] = record.compile
    if record.vae_tiling is None and parallel.vae_patch == 1:
        assumed.append("vae_tiling")
    if record.vae_fast_path is not None:
        fields["vae_fast_path"] = record.vae_fast_path
    if record.guardrails is not None:
        fields["guardrails"] = record.guardrails
    if record.dtype is None:
        assumed.append("dtype")
    return Options.model_validate(fields)
