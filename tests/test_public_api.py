"""Names that the package promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perfmodel as pm


def test_every_public_name_loads():
    for name in pm.__all__:
        assert getattr(pm, name) is not None
    assert set(pm.__all__) <= set(dir(pm))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pm.nothing


def test_system_means_what_gpus_means():
    box = pm.system("4xB300", host_ram_gib=1024)
    assert isinstance(box, pm.System)
    assert (box.num_gpus, box.host_ram_bytes) == (4, 1024 * 1024**3)
    with pytest.raises(pm.BadInput):
        pm.system("4xB301")


def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, perfmodel; heavy = {'numpy', 'pydantic', 'torch', 'yaml', 'typer', 'rich'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


JOB = pm.Workload(frames=81)


def test_a_machine_may_be_the_text_of_gpus():
    box = pm.system("4xB300")
    named, given = pm.recommend(JOB, "4xB300", top=1), pm.recommend(JOB, box, top=1)
    assert named.answer_id == given.answer_id
    one = pm.predict(JOB, "4xB300", parallel="cfg2").prediction
    assert one.latency_ms == pm.predict(JOB, box, parallel="cfg2").prediction.latency_ms
    assert len(pm.predict_all(JOB, "2xB300")["latency_ms"]) > 1


@pytest.mark.parametrize("text", ["cfg2_usp2_vaepp4", "usp2_hsdp2", "cfg2_tp2"])
def test_the_degrees_of_an_answer_ask_for_it_again(text):
    first = pm.predict(JOB, "4xB300", parallel=text).prediction
    again = pm.predict(JOB, "4xB300", parallel=first.parallel).prediction
    assert (again.config_id, again.latency_ms) == (first.config_id, first.latency_ms)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("system", lambda: pm.recommend(JOB, 4)),
        ("system", lambda: pm.predict(JOB, None)),
        ("workload", lambda: pm.recommend("flux.1-dev", "4xB300")),
        ("workload", lambda: pm.predict({"frames": 81}, "4xB300")),
        ("options", lambda: pm.recommend(JOB, "4xB300", options={"offload": "auto"})),
        ("options", lambda: pm.predict(JOB, "4xB300", options="fp8")),
        ("parallel", lambda: pm.predict(JOB, "4xB300", parallel={"tp": 2})),
        ("parallel", lambda: pm.predict(JOB, "4xB300", parallel=2)),
    ],
)
def test_another_type_is_refused_in_one_line(field, call):
    with pytest.raises(pm.BadInput) as refused:
        call()
    (problem,) = refused.value.problems
    assert problem.field == field
    assert f"{field} is of type " in problem.message
    assert "\n" not in problem.line()
