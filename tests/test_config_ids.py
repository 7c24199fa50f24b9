"""Ids of configurations: what a page prints reads back as the same configuration and options."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.api.configuration import asked_configuration
from perfmodel.api.records import id_suffixes
from perfmodel.spec.parallel import KEYS, ParallelConfig, config_id
from perfmodel.spec.workload import Options, Workload


def _values(name: str) -> tuple[str, ...]:
    return get_args(Options.model_fields[name].annotation)


degrees = st.fixed_dictionaries({key: st.sampled_from([1, 1, 2, 4]) for key in KEYS})
configs = st.builds(
    lambda found, tiling: ParallelConfig(**found, vae_tiling=tiling), degrees, st.booleans()
)
options = st.builds(
    Options,
    dtype=st.sampled_from(_values("dtype")),
    offload=st.sampled_from(_values("offload")),
    cache_skip=st.floats(0, 0.99),
    attention_density=st.floats(1e-9, 1),
)


@given(configs, options)
def test_an_id_reads_back_as_what_it_names(config: ParallelConfig, chosen: Options) -> None:
    printed = config_id(config, id_suffixes(chosen))
    read, _, said = asked_configuration(printed, None, "vllm-omni", Workload(), None)
    assert config_id(read, id_suffixes(said)) == printed
    assert read.world_size == config.world_size or config.hsdp == 1
    named = {"dtype", "offload", "cache_skip", "attention_density"}
    lossless = {"fp16": "bf16", "auto": "none"}
    for name in named:
        value = getattr(chosen, name)
        assert getattr(said, name) == lossless.get(value, value)


@given(configs, st.sampled_from([method for method in _values("cache_method") if method != "none"]))
def test_an_id_with_a_named_cache_reads_back(config: ParallelConfig, method: str) -> None:
    chosen = Options(cache_method=method, cache_skip=0.3)
    printed = config_id(config, id_suffixes(chosen, {"cache_skip"}))
    said = asked_configuration(printed, None, "vllm-omni", Workload(), None)[2]
    assert said.cache_method == method


def test_quantised_weights_stand_beside_any_16_bit_activations() -> None:
    """The variants that recommend lists under ``--dtype fp16`` read back beside it."""
    asked = Options(dtype="fp16")
    _, _, said = asked_configuration("usp2_fp8", None, "vllm-omni", Workload(), asked)
    assert said.dtype == "fp8"
