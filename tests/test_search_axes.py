"""The enumeration of degrees at its edges, and engines that have a model another lacks."""

from __future__ import annotations

import pytest

from perfmodel.catalog import parse_gpus
from perfmodel.engines import engines_with
from perfmodel.errors import PerfmodelError
from perfmodel.search.enumerate import factorizations


def test_an_engine_without_axes_has_one_configuration() -> None:
    assert list(factorizations(1, 0)) == [()]
    assert list(factorizations(4, 0)) == []
    assert list(factorizations(4, 1)) == [(4,)]


def test_a_refused_model_names_the_engines_that_have_it() -> None:
    from perfmodel.api import recommend
    from perfmodel.spec.workload import Workload

    assert engines_with("hunyuanvideo") == ("sglang-diffusion", "xdit", "diffusers")
    with pytest.raises(PerfmodelError) as caught:
        recommend(Workload(model="hunyuanvideo"), parse_gpus("4xH100"))
    problem = caught.value.problems[0]
    assert problem.rule_id == "model-not-in-engine"
    assert problem.legal_values == ("sglang-diffusion", "xdit", "diffusers")
    assert "--engine sglang-diffusion" in problem.message


def test_servers_come_before_the_models_own_code() -> None:
    assert engines_with("wan2.2-t2v-a14b")[0] == "vllm-omni"
    assert "wan-official" not in engines_with("wan2.1-vace-14b")
    assert engines_with("longcat-video") == ("fastvideo",)
