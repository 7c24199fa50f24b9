"""What answers quote of measured runs: the shipped list, the group that fits, the nearest run."""

import csv
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.api.evidence import distance, quantile
from perfmodel.api.session import open_session
from perfmodel.catalog.scored import ScoredRun, scored_runs
from perfmodel.errors import BadInput
from perfmodel.spec.record import END_TO_END_KEYS, read_records
from perfmodel.validate.runs import fitted_ids
from perfmodel.validate.scored import scored_run, write

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "calibration" / "runs" / "public.jsonl"
SCORED = ROOT / "calibration" / "runs" / "scored.csv"
FLAGSHIP = pm.Workload(model="cosmos3-nano", frames=189)


def rows() -> list[dict[str, str]]:
    with SCORED.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def kinds(answer) -> dict:
    return {item.kind: item for item in answer.evidence}


def test_the_list_holds_the_measured_times_of_the_records():
    records = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        records[record["id"]] = record
    found = rows()
    assert len(found) > 300
    for row in found:
        record = records[row["id"]]
        key = next(key for key in END_TO_END_KEYS if key in record["measured_ms"])
        assert float(row["measured_ms"]) == record["measured_ms"][key]
        assert row["source"] == record["source"]
        assert not record["doubtful"]


def test_the_list_is_what_the_model_says_today():
    """A sample; after a change of a law or a fit: python -m perfmodel.validate.scored."""
    listed = {row["id"]: row for row in rows()}
    records, _ = read_records([RUNS])
    fit_ids = fitted_ids()
    for record in records[::15]:
        now = scored_run(record, fit_ids)
        assert (now is not None) == (record.id in listed), record.id
        if now is not None:
            row = listed[record.id]
            assert float(row["predicted_ms"]) == pytest.approx(now.predicted_ms, rel=1e-3)
            assert (row["config_id"], row["in_fit"]) == (now.config_id, str(now.in_fit))


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = scored_runs("cosmos3-nano", "b300-sxm")[0]
    write([run], tmp_path / "one.csv")
    with (tmp_path / "one.csv").open(encoding="utf-8", newline="") as lines:
        _, cells = csv.reader(lines)
    assert ScoredRun.read(cells) == run


def test_a_broken_list_is_refused_by_name(tmp_path, monkeypatch):
    folder = tmp_path / "calibration" / "runs"
    folder.mkdir(parents=True)
    (folder / "scored.csv").write_text("id,model\nx,cosmos3-nano,b300-sxm\n", encoding="utf-8")
    monkeypatch.setattr("perfmodel.catalog.scored.data_roots", lambda: (tmp_path,))
    with pytest.raises(BadInput, match=r"scored\.csv.*perfmodel\.validate\.scored"):
        scored_runs("cosmos3-nano", "b300-sxm")


def test_the_group_states_the_errors_of_its_runs():
    answer = pm.predict(FLAGSHIP, "4xb300-sxm", parallel="cfg2_usp2_vaepp4")
    group = kinds(answer)["runs"]
    errors = sorted(
        abs(float(row["predicted_ms"]) / float(row["measured_ms"]) - 1) * 100
        for row in rows()
        if (row["model"], row["device"], row["engine"]) == ("cosmos3-nano", "b300-sxm", "vllm-omni")
    )
    assert group.records == len(errors)
    middle = errors[len(errors) // 2]
    assert len(errors) % 2 == 1
    assert group.median_ape == pytest.approx(middle)
    assert "Cosmos3-Nano on this GPU with vLLM-Omni (all used in the fit)" in group.text


def test_a_model_that_nobody_measured_there_takes_the_next_group():
    """Fewer than three runs of FLUX.2 on an H200."""
    job = pm.Workload(model="flux.2-dev")
    answer = pm.predict(job, "1xh200-sxm")
    seen = [r for r in rows() if (r["model"], r["device"]) == ("flux.2-dev", "h200-sxm")]
    assert len(seen) < 3
    assert "of any model on this GPU with vLLM-Omni" in kinds(answer)["runs"].text


@pytest.mark.parametrize("number", range(0, 400, 57))
def test_a_run_is_its_own_nearest(number):
    """Asked for exactly what was run, no run is nearer."""
    row = rows()[number]
    job = pm.Workload(
        model=row["model"],
        task=row["task"],
        width=int(row["width"]),
        height=int(row["height"]),
        frames=int(row["frames"]),
        forwards=int(row["forwards"]),
        steps=int(row["steps"]),
        batch=int(row["batch"]),
    )
    session = open_session(job, f"{row['num_gpus']}x{row['device']}", engine=row["engine"])
    shown = pm.predict(FLAGSHIP, "4xb300-sxm").prediction.model_copy(
        update={"config_id": row["config_id"], "num_gpus": int(row["num_gpus"])}
    )
    runs = {run.id: run for run in scored_runs(row["model"], row["device"])}
    own = distance(session, shown, runs[row["id"]])
    assert own == pytest.approx(math.log(int(row["concurrency"])))
    twice = runs[row["id"]]._replace(frames=2 * int(row["frames"]))
    assert distance(session, shown, twice) == pytest.approx(own + math.log(2))


def test_the_nearest_run_is_the_request_itself_where_it_was_measured():
    """The first answer of the README was measured in June: 33,623 ms."""
    for answer in (
        pm.predict(FLAGSHIP, "4xb300-sxm", parallel="cfg2_usp2_vaepp4"),
        pm.recommend(FLAGSHIP, "4xb300-sxm"),
    ):
        nearest = kinds(answer)["nearest"]
        assert nearest.measured_ms == 33_623
        assert nearest.url == "https://github.com/vllm-project/vllm-omni/pull/4301"
        assert "same request and configuration" in nearest.text
    other = pm.predict(FLAGSHIP.model_copy(update={"frames": 93}), "4xb300-sxm")
    assert "189 frames" in kinds(other)["nearest"].text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compile": False}, "compile=True"),
        ({"attention_backend": "FLASH_ATTN"}, "attention_backend=CUDNN_ATTN"),
        ({"guardrails": True}, "guardrails=False"),
    ],
)
def test_what_the_nearest_run_did_otherwise_is_said(changed, said):
    """The run of June is older than the fast path of the VAE."""
    asked = {"parallel": "cfg2_usp2_vaepp4"}
    plain = kinds(pm.predict(FLAGSHIP, "4xb300-sxm", **asked))["nearest"].text
    assert "same request and configuration, vae_fast_path=off, vLLM-Omni main at" in plain
    slow = {"vae_fast_path": "off"}
    other = kinds(
        pm.predict(FLAGSHIP, "4xb300-sxm", **asked, options=pm.Options(**changed, **slow))
    )["nearest"].text
    assert said not in plain
    assert f"same request and configuration, {said}, vLLM-Omni main at" in other


def test_errors_of_shipped_laws_are_not_quoted_for_other_laws(tmp_path, monkeypatch):
    own = tmp_path / "calibration" / "engines"
    own.mkdir(parents=True)
    shipped = ROOT / "calibration" / "engines" / "vllm-omni.json"
    (own / "vllm-omni.json").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    assert "runs" in kinds(pm.predict(FLAGSHIP, "1xb300-sxm"))
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    said = pm.predict(FLAGSHIP, "1xb300-sxm")
    assert set(kinds(said)) == {"holdout"}
    kernels, own_runs = said.evidence
    unseen = json.loads(shipped.read_text(encoding="utf-8"))["fit"]["held_out"]["after"]
    assert own_runs.median_ape == pytest.approx(100 * unseen["median_frac"])
    assert "your engine terms" in own_runs.text
    assert "kernels" in kernels.text
    digest = hashlib.sha256(shipped.read_bytes()).hexdigest()[:8]
    assert said.provenance["terms"] == f"vllm-omni@{digest} of your own"


def test_a_fit_of_the_users_own_quotes_its_own_kernels(tmp_path):
    fit = json.loads((ROOT / "calibration" / "fits" / "b300-sxm.json").read_text("utf-8"))
    path = tmp_path / "own.json"
    fit["laws"]["gemm/bf16"]["heldout"]["median_ape"] = 1.5
    path.write_text(json.dumps(fit), encoding="utf-8")
    said = pm.predict(FLAGSHIP, "1xb300-sxm", fit=path).evidence
    assert [item.kind for item in said] == ["holdout"]
    assert "gemm 1.5 %" in said[0].text


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=40), st.sampled_from((0.5, 0.9)))
def test_quantile_is_numpys_to_the_last_bit(values: list[float], share: float) -> None:
    assert quantile(values, share) == np.quantile(values, share)
