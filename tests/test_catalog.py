"""Names, counts, user folders, described machines, detection."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfmodel import catalog
from perfmodel.catalog import Overrides, hardware_ids, load_device, parse_gpus
from perfmodel.catalog.data import simple
from perfmodel.catalog.detect import Found, host_sockets, parse_ascend, parse_nvidia
from perfmodel.catalog.index import index_text
from perfmodel.catalog.machine import system_yaml
from perfmodel.cli.app import run as typed
from perfmodel.cli.hardware import app
from perfmodel.errors import BadInput, PerfmodelError
from perfmodel.topology import Topology

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
L4 = (ROOT / "hardware" / "l4.yaml").read_text()


@pytest.mark.parametrize("folder", ["hardware", "models"])
def test_index_equals_the_files(folder):
    path = ROOT / folder / "index.json"
    assert path.read_text() == index_text(ROOT / folder), "run python -m perfmodel.catalog.index"


@pytest.mark.parametrize("folder", ["hardware", "models"])
def test_no_two_files_share_a_name(folder):
    owners: dict[str, str] = {}
    for item in catalog.entries(folder).values():
        for name in {simple(item.id), *(simple(other) for other in item.names)}:
            assert owners.setdefault(name, item.id) == item.id, name


@pytest.mark.parametrize(
    ("text", "device", "gpus", "nodes", "per_node"),
    [
        ("4xB300", "b300-sxm", 4, 1, 4),
        ("4 X b300", "b300-sxm", 4, 1, 4),
        ("8xH100", "h100-sxm", 8, 1, 8),
        ("2x8xH100", "h100-sxm", 16, 2, 8),
        ("16xH100", "h100-sxm", 16, 2, 8),
        ("h100:8", "h100-sxm", 8, 1, 8),
        ("B300", "b300-sxm", 1, 1, 1),
        ("4xNVIDIA H200", "h200-sxm", 4, 1, 4),
        ("8x NVIDIA B300 SXM6 AC", "b300-sxm", 8, 1, 8),
        ("NVIDIA H100 80GB HBM3", "h100-sxm", 1, 1, 1),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", 1, 1, 1),
        ("2x RTX 4090", "rtx-4090", 2, 1, 2),
        ("4x4090", "rtx-4090", 4, 1, 4),
        ("4090", "rtx-4090", 1, 1, 1),
        ("Ascend910_9391", "ascend-910c-die", 1, 1, 1),
        ("16x910C", "ascend-910c-die", 16, 1, 16),
        ("2xAscend 910B3 64GB", "ascend-910b3", 2, 1, 2),
        ("A100 40GB", "a100-sxm-40g", 1, 1, 1),
        ("L20 48GB (PCIe)", "l20", 1, 1, 1),
        ("8xL40 PCIe", "l40", 8, 1, 8),
        ("AMD Instinct MI300X", "mi300x", 1, 1, 1),
        ("8xGB300", "gb300", 8, 2, 4),
    ],
)
def test_gpus_grammar(text, device, gpus, nodes, per_node):
    system = parse_gpus(text)
    assert (system.device.id, system.num_gpus) == (device, gpus)
    assert (system.nodes, system.gpus_per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    "text",
    ["", " ", "0xB300", "-1xB300", "4x", "h100:0", "B300:", "100001xB300", "9" * 400 + "xB300",
     "1000x1000xB300", "0x8xH100", "4xB300,4xH100", "x", "4xx", "\u0664xB300x"],
)  # fmt: skip
def test_bad_counts_and_names_are_one_line(text):
    with pytest.raises(BadInput) as caught:
        parse_gpus(text)
    assert len(caught.value.problems) == 1
    assert "\n" not in caught.value.problems[0].line()


@given(st.text(max_size=20))
def test_any_text_is_a_system_or_a_refusal(text):
    if text.strip().lower() == "here":
        return
    with contextlib.suppress(BadInput):
        assert 1 <= parse_gpus(text).num_gpus <= 100_000


def test_unknown_name_names_the_nearest():
    with pytest.raises(BadInput) as caught:
        parse_gpus("4xB301")
    assert caught.value.problems[0].line() == (
        'error[gpu-name]: no accelerator "B301"; nearest: B300, GB300, B200; '
        "list: perfmodel hardware list; "
        "your own: DIR/hardware/ID.yaml and PERFMODEL_PATH=DIR, then its ID"
    )


def test_a_device_file_is_no_machine_and_the_line_says_where_it_goes(tmp_path, monkeypatch):
    file = Path(__file__).parents[1] / "hardware" / "l40s.yaml"
    with pytest.raises(BadInput) as caught:
        catalog.load_system(file)
    (problem,) = caught.value.problems
    assert "PERFMODEL_PATH=DIR" in problem.message
    assert "--gpus 4xl40s" in problem.message
    # what the line says to do is enough
    (tmp_path / "hardware").mkdir()
    own = file.read_text().replace("id: l40s", "id: my-gpu").replace("title: L40S", "title: Mine")
    (tmp_path / "hardware" / "my-gpu.yaml").write_text(own)
    with pytest.raises(BadInput, match="PERFMODEL_PATH"):
        parse_gpus("4xmy-gpu")
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    assert parse_gpus("4xmy-gpu").device.title == "Mine"


@pytest.mark.parametrize(
    ("text", "taken", "other"),
    [
        ("A100", "a100-sxm-80g", "A100 PCIe 40 GB"),
        ("H100", "h100-sxm", "H100 PCIe"),
        ("A800", "a800-sxm-80g", "A800 PCIe"),
        ("910C", "ascend-910c-die", "one of the two dies"),
        ("910B", "ascend-910b2", "Ascend 910B4"),
    ],
)
def test_short_names_say_what_was_taken(text, taken, other):
    (warning,) = parse_gpus(f"2x{text}").warnings
    assert warning.severity == "warning"
    assert taken in warning.message
    assert other in warning.message


@pytest.mark.parametrize("text", ["NVIDIA H200", "b300", "L40S", "h100-pcie", "Ascend910_9391"])
def test_exact_names_do_not_warn(text):
    assert parse_gpus(text).warnings == ()


def test_hosts_that_are_not_full_are_reported():
    assert "unevenly" in parse_gpus("12xB300").warnings[0].message
    assert "usual host has 8" in parse_gpus("1x16xB300").warnings[0].message


def test_overrides():
    system = parse_gpus(
        "8xL40S",
        Overrides(gpu_memory_gib=48, gpu_reserve_gib=2, host_ram_gib=256, p2p=False, sockets=1),
    )
    assert system.usable_bytes == 46 * GIB
    assert system.host_ram_bytes == 256 * GIB
    assert (system.p2p, system.sockets) == (False, 1)
    assert system.assumed == ()
    plain = parse_gpus("8xL40S")
    assert plain.host_ram_bytes is None
    assert (plain.p2p, plain.sockets) == (True, 2)
    assert set(plain.assumed) == {"p2p", "sockets"}


def test_impossible_overrides_are_all_named():
    with pytest.raises(BadInput) as caught:
        parse_gpus("l4", Overrides(gpu_reserve_gib=30, host_ram_gib=0, sockets=0))
    assert {problem.field for problem in caught.value.problems} == {
        "--gpu-reserve",
        "--host-ram",
        "--sockets",
    }


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "hardware").mkdir()
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    return tmp_path


def test_own_device_joins_and_own_file_wins(own):
    new = L4.replace("id: l4", "id: l5").replace("title: L4", "title: L5")
    (own / "hardware" / "l5.yaml").write_text(
        new.replace("names: [NVIDIA L4]", "names: [NVIDIA L5]")
    )
    (own / "hardware" / "l4.yaml").write_text(L4.replace("title: L4", "title: L4 of mine"))
    assert parse_gpus("2xNVIDIA L5").device.id == "l5"
    assert load_device("l4").title == "L4 of mine"
    assert load_device("b300").id == "b300-sxm"


def test_later_folders_win(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name / "hardware").mkdir(parents=True)
        file = tmp_path / name / "hardware" / "l4.yaml"
        file.write_text(L4.replace("title: L4", f"title: {name}"))
    monkeypatch.setenv(
        "PERFMODEL_PATH", os.pathsep.join(str(tmp_path / name) for name in ("one", "two"))
    )
    assert load_device("l4").title == "two"


def test_a_broken_own_file_is_named_and_matters_only_where_it_is_asked_for(own, capsys):
    (own / "hardware" / "a.yaml").write_text("id: [")
    (own / "hardware" / "b.yaml").write_text("- 1\n")
    (own / "hardware" / "l4.yaml").write_text(
        L4.replace("title: L4", "titel: L4").replace("3.0e+11", "3.0e11")
    )
    (own / "models").mkdir()
    (own / "models" / "draft.yaml").write_text("slug: [")
    assert load_device("b300-sxm").id == "b300-sxm"
    assert typed(["recommend", "--gpus", "4xB300", "--frames", "189"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "[own-file]" in line]
    for name in ("a.yaml", "b.yaml", "l4.yaml", "draft.yaml"):
        assert sum(name in line for line in said) == 1
    assert all(line.startswith("warning[") for line in said)
    assert not {"a", "b", "l4"} & set(hardware_ids())
    with pytest.raises(BadInput) as caught:
        load_device("l4")
    lines = [problem.line() for problem in caught.value.problems]
    assert caught.value.exit_code == 2
    assert any('unknown field "titel"; did you mean "title"?' in line for line in lines)
    assert any("memory.bandwidth_bytes_per_s.value" in line and "3.0" in line for line in lines)
    with pytest.raises(BadInput, match="a mapping of fields is needed"):
        load_device("b")
    assert typed(["recommend", "--gpus", "4xa", "--frames", "189"]) == 2
    assert typed(["recommend", "--gpus", "4xneighbour", "--frames", "189"]) == 2
    assert "a.yaml" in capsys.readouterr().err


@pytest.fixture
def copied(own):
    """A neighbour's file with another id and nothing else changed."""
    text = (ROOT / "hardware" / "h100-sxm.yaml").read_text()
    path = own / "hardware" / "my-gpu.yaml"
    path.write_text(text.replace("id: h100-sxm", "id: my-gpu"))
    return path


def test_an_exact_id_wins_over_the_names_of_a_copied_file(copied, capsys):
    for name in ("h100-sxm", "4xh100-sxm", "4x H100-SXM"):
        assert parse_gpus(name).device.id == "h100-sxm"
        assert not parse_gpus(name).warnings
    assert parse_gpus("4xmy-gpu").device.id == "my-gpu"
    system = parse_gpus("4xh100")
    assert system.device.id == "my-gpu"
    assert "my-gpu" in system.warnings[0].message
    assert "h100-sxm" in system.warnings[0].message
    assert 'titled "H100 SXM"' in parse_gpus("my-gpu").warnings[0].message
    assert typed(["hardware", "check", str(copied)]) == 0
    said = capsys.readouterr().err
    assert "H100 SXM" in said
    assert "also name h100-sxm" in said


def test_a_file_with_names_of_its_own_is_said_nothing_of(own, capsys):
    new = L4.replace("id: l4", "id: l5").replace("title: L4", "title: L5")
    path = own / "hardware" / "l5.yaml"
    path.write_text(new.replace("names: [NVIDIA L4]", "names: [NVIDIA L5]"))
    assert typed(["hardware", "check", str(path)]) == 0
    assert not capsys.readouterr().err


def test_a_device_without_a_network_answers_in_one_host_and_is_refused_over_two(own, capsys):
    data = yaml.safe_load(L4.replace("id: l4", "id: l6").replace("title: L4", "title: L6"))
    del data["network"]
    data["names"] = ["NVIDIA L6"]
    path = own / "hardware" / "l6.yaml"
    path.write_text(yaml.safe_dump(data))
    ask = ["--model", "wan2.1-t2v-1.3b", "--frames", "17"]
    assert typed(["hardware", "check", str(path)]) == 0
    assert typed(["hardware", "show", "l6"]) == 0
    assert typed(["recommend", "--gpus", "2xl6", *ask]) == 0
    capsys.readouterr()
    assert typed(["recommend", "--gpus", "2x4xl6", *ask]) == 4
    assert "states no network" in capsys.readouterr().err


def test_key_written_twice_is_refused(own):
    (own / "hardware" / "l4.yaml").write_text(L4 + "title: again\n")
    with pytest.raises(BadInput, match='"title" is written twice'):
        load_device("l4")


def test_path_that_is_no_folder(monkeypatch):
    monkeypatch.setenv("PERFMODEL_PATH", "/nowhere/at/all")
    with pytest.raises(BadInput, match="is not a folder"):
        load_device("l4")


def test_own_fit_wins_and_missing_is_none(own):
    (own / "calibration" / "fits").mkdir(parents=True)
    (own / "calibration" / "fits" / "l4.json").write_text('{"fit_id": "mine"}')
    (own / "calibration" / "fits" / "a10.json").write_text("[1]")
    assert catalog.load_fit("l4") == {"fit_id": "mine"}
    assert catalog.load_fit("no-such-device") is None
    assert catalog.load_terms("no-such-engine") == {}
    with pytest.raises(BadInput, match="a JSON object is needed"):
        catalog.load_fit("a10")


def test_fit_of_the_later_folder_wins(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name / "calibration" / "fits").mkdir(parents=True)
        (tmp_path / name / "calibration" / "fits" / "l4.json").write_text(f'{{"fit_id": "{name}"}}')
    monkeypatch.setenv("PERFMODEL_PATH", f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}")
    assert catalog.load_fit("l4") == {"fit_id": "two"}


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("2xRTX 4090 48GB", True),
        ("RTX 4090 24GB", False),
        ("H200 141GB", False),
        ("L20 48GB", False),
    ],
)
def test_another_memory_size_is_not_silently_ignored(text, warned):
    warnings = parse_gpus(text).warnings
    assert any("--gpu-memory 48" in problem.message for problem in warnings) == warned
    assert parse_gpus(text, Overrides(gpu_memory_gib=48)).warnings == ()


def test_described_machine(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(
        "device: rtx-4090\ngpus: 4\nhost_ram_gib: 256\ngpu_memory_gib: 48\np2p: false\nsockets: 2\n"
    )
    system = catalog.load_system(path, Overrides(gpu_reserve_gib=1.0))
    assert (system.label, system.sockets, system.p2p) == ("4x RTX 4090", 2, False)
    assert system.usable_bytes == 47 * GIB
    assert system.host_ram_bytes == 256 * GIB


def test_described_machine_with_inline_device_and_cables(tmp_path):
    device = yaml.safe_load(L4)
    device["id"] = "l9"
    links = [
        {"between": ["gpu0", "hub"], "gb_per_s_per_direction": 16},
        {"between": ["gpu1", "hub"], "gb_per_s_per_direction": 8},
    ]
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump({"device": device, "gpus": 2, "links": links}))
    system = catalog.load_system(path)
    assert system.device.id == "l9"
    assert float(Topology.of(system).path(2).bytes_per_s_per_direction) == 8e9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("device: l4\nsocket: 2\n", 'unknown field "socket"; did you mean "sockets"?'),
        ("gpus: 2\n", "device: this field is missing"),
        ("device: l4\ngpus: 0\n", "gpus"),
        ("device: l4\ngpus: '2'\n", "not a whole number"),
        ("device: l4\np2p: 1\n", "p2p"),
        ("device: nope\n", 'no accelerator "nope"'),
        (
            "device: l4\ngpus: 2\nlinks:\n- {between: [gpu0, x], gb_per_s_per_direction: 3}\n",
            "gpu1",
        ),
    ],
)
def test_described_machine_refusals(tmp_path, text, why):
    path = tmp_path / "box.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        catalog.load_system(path)
    assert any(why in problem.line() for problem in caught.value.problems)


def test_missing_system_file_is_one_line():
    with pytest.raises(BadInput, match="No such file"):
        catalog.load_system("no-such-file.yaml")


def test_tool_output_is_read():
    assert parse_nvidia(["NVIDIA H200, 143771", "NVIDIA GB10, [N/A]", ""]) == [
        ("NVIDIA H200", 143771 * 2**20),
        ("NVIDIA GB10", 0.0),
    ]
    table = """
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.6        40                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3363 / 65536         |
| 1     910B3               | OK            | 91.0        41                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3361 / 65536         |
"""
    assert parse_ascend(table.splitlines()) == [("910B3", 65536 * 2**20)] * 2


def test_here_without_tools_says_what_was_tried(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BadInput, match="nvidia-smi, npu-smi, rocm-smi tried"):
        parse_gpus("here")


def test_here_with_a_tool(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in\n"
        "topo) printf '\\tGPU0\\tGPU1\\n GPU0\\tX\\tOK\\n GPU1\\tNS\\tX\\n';;\n"
        "*) printf 'NVIDIA L40S, 46068\\nNVIDIA L40S, 46068\\n';;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    system = parse_gpus("here")
    assert (system.device.id, system.num_gpus, system.p2p) == ("l40s", 2, False)
    assert system.usable_bytes == pytest.approx(46068 * 2**20)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert parse_gpus("here").num_gpus == 1


def test_detected_file_reads_back(tmp_path):
    found = Found(
        name="NVIDIA L40S", count=2, memory_gib=44.99, host_ram_gib=512.0, sockets=2, p2p=False,
        settings=("NCCL_P2P_DISABLE=1",),
    )  # fmt: skip
    path = tmp_path / "box.yaml"
    path.write_text(system_yaml(found))
    system = catalog.load_system(path)
    assert (system.label, system.p2p, system.sockets) == ("2x L40S", False, 2)


def test_sockets_are_counted(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("physical id\t: 0\nphysical id\t: 1\nphysical id\t: 1\n")
    assert host_sockets(path) == 2


run = CliRunner()


def test_list_shows_every_device_with_units():
    result = run.invoke(app, ["list"])
    assert result.exit_code == 0
    assert all(name in result.output for name in catalog.hardware_ids())
    assert "TFLOP/s" in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())
    rows = json.loads(run.invoke(app, ["list", "--json"]).output)["devices"]
    assert {row["id"] for row in rows} == set(catalog.hardware_ids())


def test_show_prints_figures_with_sources():
    result = run.invoke(app, ["show", "B300"])
    assert result.exit_code == 0
    assert "2,250" in result.output
    assert "https://" in result.output
    record = json.loads(run.invoke(app, ["show", "b300-sxm", "--json"]).output)
    assert record["peak_flop_per_s"]["bf16"]["value"] == 2.25e15


def test_show_unknown_is_exit_2():
    result = run.invoke(app, ["show", "B301"])
    assert result.exit_code == 2
    assert "nearest: B300" in result.stderr


def test_check_reads_devices_and_machines(tmp_path):
    box = tmp_path / "box.yaml"
    box.write_text("device: l4\ngpus: 2\n")
    good = run.invoke(app, ["check", str(ROOT / "hardware" / "l4.yaml"), str(box)])
    assert good.exit_code == 0
    assert "a good machine, 2x L4" in good.output
    bad = tmp_path / "l4.yaml"
    bad.write_text(L4.replace("vendor: NVIDIA\n", ""))
    result = run.invoke(app, ["check", str(bad), str(box)])
    assert result.exit_code == 2
    assert "vendor: this field is missing" in result.stderr


def test_a_start_reads_one_device_file_and_no_heavy_library():
    code = (
        "import sys, yaml, perfmodel.catalog as c\n"
        "n=0\nold=yaml.load\n"
        "def load(*a, **k):\n    global n\n    n+=1\n    return old(*a, **k)\n"
        "yaml.load=load\n"
        "from perfmodel.topology import Topology\n"
        "Topology.of(c.parse_gpus('4xB300')).path([1,2,4])\n"
        "print(n, [m for m in ('networkx','scipy','torch','optuna','rich') if m in sys.modules])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PERFMODEL_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.strip() == "1 []"


def test_all_errors_are_of_the_family():
    with pytest.raises(PerfmodelError):
        load_device("nothing like it")


def test_a_check_says_what_a_file_leaves_open_and_what_that_costs(own, capsys):
    data = yaml.safe_load(L4.replace("id: l4", "id: l7").replace("title: L4", "title: L7"))
    for key in ("compute", "network", "vector_flop_per_s"):
        data.pop(key, None)
    data["names"] = ["NVIDIA L7"]
    data["peak_flop_per_s"] = {"bf16": data["peak_flop_per_s"]["bf16"]}
    data["memory"].pop("l2_bytes")
    path = own / "hardware" / "l7.yaml"
    path.write_text(yaml.safe_dump(data))
    assert typed(["hardware", "check", str(path)]) == 0
    said = capsys.readouterr().err
    for name, cost in (
        ("compute.multiprocessors", "exponentials go by the family's ratio"),
        ("compute.boost_hz", "1.5 GHz"),
        ("compute.tdp_w", "power limit"),
        ("memory.l2_bytes", "cache"),
        ("vector_flop_per_s", "fp32 are refused"),
        ("network", "several hosts are refused"),
    ):
        assert any(name in line and cost in line for line in said.splitlines()), name
    ask = ["recommend", "--gpus", "1xl7", "--frames", "17"]
    assert typed([*ask, "--model", "wan2.1-t2v-1.3b", "--engine", "diffusers"]) == 4
