"""Collectives are fitted over the links that predictions take for the same groups."""

import json

import numpy as np
import pytest
from calibrate_rows import QUICK

from perfmodel.calibrate.fitfile import fit_document
from perfmodel.calibrate.run import calibrate
from perfmodel.calibrate.score import validate_microbench
from perfmodel.catalog import Overrides, build_system, load_device, parse_gpus
from perfmodel.cli.app import run
from perfmodel.cost.collective import cost_collective
from perfmodel.cost.machine import Machine
from perfmodel.errors import BadInput
from perfmodel.ops import Collective
from perfmodel.topology import Topology

NO_PEERS = Overrides(p2p=False)
OPS = ("all_gather", "reduce_scatter", "all_reduce")


def write_ring(path, rate_of, wrong=None, ranks=(2, 4, 8)):
    """Rings at ``rate_of(ranks)`` bytes a second; those of the operation `wrong` in ns."""
    lines = ["op,collective,num_ranks,message_bytes,latency_us"]
    for op in OPS:
        passes, unit = (2 if op == "all_reduce" else 1), 1e9 if op == wrong else 1e6
        for n in ranks:
            for power in range(12, 30):
                time_s = passes * (20e-6 + 2**power * (1 - 1 / n) / rate_of(n))
                lines.append(f"collective,{op},{n},{2**power},{time_s * unit:.6g}")
    (path / "collective.csv").write_text("\n".join(lines))
    return [path]


def predicted_s(system, document, op, ranks, full_bytes):
    machine = Machine.build(system.device, Topology.of(system), fit=document)
    asked = Collective(name="x", op=op, full_bytes=float(full_bytes), ranks=ranks)
    return float(cost_collective(asked, machine).time_each_s)


def test_a_pair_on_a_mesh_has_one_link(tmp_path):
    """Eight devices, seven links each at 64 GB/s: a pair uses one, a group of eight all."""
    device = load_device("mi300x")
    result = calibrate(write_ring(tmp_path, lambda n: 0.8 * 64e9 * (n - 1)), device, QUICK)
    document = fit_document(result)
    system = parse_gpus("8xmi300x")
    for n in (2, 4, 8):
        expected = 20e-6 + 2**28 * (1 - 1 / n) / (0.8 * 64e9 * (n - 1))
        found = predicted_s(system, document, "all_gather", n, 2**28)
        assert found == pytest.approx(expected, rel=0.12), n


def test_copies_through_the_host_are_said_not_guessed(tmp_path):
    """1.8 % of NVLink is a unit slip, or a host without peer access, which the user states."""
    device = load_device("h100-sxm")
    records = write_ring(tmp_path, lambda n: 0.7 * min(25e9, 50e9 / n))
    with pytest.raises(BadInput, match=r"is latency_us in microseconds\? .*--no-p2p"):
        calibrate(records, device, QUICK)
    result = calibrate(records, device, QUICK, host=NO_PEERS)
    assert result.refused == ()
    document = fit_document(result)
    assert document["laws"]["collective/ring"]["host"] == {"p2p": False}
    system = build_system(device, count=8, overrides=NO_PEERS)
    for n in (2, 8):
        expected = 2 * (20e-6 + 2**28 * (1 - 1 / n) / (0.7 * min(25e9, 50e9 / n)))
        found = predicted_s(system, document, "all_reduce", n, 2**28)
        assert found == pytest.approx(expected, rel=0.2), n
    answer = validate_microbench(records, device, document)
    assert answer["metrics"]["collective"]["median_ape"] < 15
    free = {p.name: len(p.grid) for p in result.laws[0].law.parameters}
    assert free["switch_s"] > 1, "NCCL's change over NVLink says nothing of host memory"


def test_predictions_warn_where_the_host_is_another_one(tmp_path, capsys):
    records = write_ring(tmp_path, lambda n: 0.7 * min(25e9, 50e9 / n))
    out = str(tmp_path / "fit.json")
    argv = ["calibrate", "--records", str(records[0]), "--device", "h100-sxm", "--out", out]
    assert run([*argv, "--no-p2p", "--trials", "8"]) == 0
    command = ["recommend", "--gpus", "4xh100", "--fit", out, "--json"]
    capsys.readouterr()
    for flags, warned in (([], True), (["--no-p2p"], False)):
        assert run([*command, *flags]) == 0
        answer = json.loads(capsys.readouterr().out)
        said = {p["rule_id"]: p["message"] for p in answer["warnings"]}
        assert ("add --no-p2p" in said.get("fit-host", "")) is warned


def test_an_operation_in_another_unit_does_not_hide_among_others(tmp_path):
    device = load_device("h100-sxm")
    with pytest.raises(
        BadInput, match=r"0\.0\d+ % of the datasheet.*is latency_us in microseconds"
    ):
        calibrate(write_ring(tmp_path, lambda _: 0.8 * 450e9, "all_gather"), device, QUICK)


@pytest.mark.parametrize("host", [[], {"p2p": "no"}, {"sockets": 0}])
def test_a_fit_with_an_impossible_host_is_refused(host, tmp_path, capsys):
    records = write_ring(tmp_path, lambda _: 0.8 * 450e9)
    document = fit_document(calibrate(records, load_device("h100-sxm"), QUICK))
    document["laws"]["collective/ring"]["host"] = host
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(document))
    assert run(["recommend", "--gpus", "4xh100", "--fit", str(path)]) == 2
    assert "laws.collective/ring.host" in capsys.readouterr().err


def test_a_group_of_one_is_no_row(tmp_path):
    records = write_ring(tmp_path, lambda _: 0.8 * 450e9, ranks=(1, 2, 4, 8))
    result = calibrate(records, load_device("h100-sxm"), QUICK)
    assert np.all(result.laws[0].law.rows["num_ranks"] > 1)
    assert any("num_ranks=1" in p.message for p in result.records.problems)


@pytest.mark.parametrize(
    ("device", "lender"), [("ascend-910b1", "ascend-910b2"), ("ascend-910b2", None)]
)
def test_the_score_says_whose_collectives_are_lent(device, lender, tmp_path, capsys):
    """The 910B1 has no fit, and `link.same_as` lends it the collectives of the 910B2."""
    write_ring(tmp_path, lambda n: 20e9 * (n - 1))
    assert run(["validate", str(tmp_path), "--device", device]) == 0
    head = capsys.readouterr().out.splitlines()[:2]
    assert ("no fit" in head[0]) == (lender is not None)
    assert ("which has the same links" in head[1]) == (lender is not None)
    assert lender is None or lender in head[1]
    answer = validate_microbench([tmp_path / "collective.csv"], load_device(device))
    assert answer["collectives_of"] == lender
