"""Hardware files: all load, figures are plausible and sourced, slips are refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from perfmodel.api import predict
from perfmodel.catalog import hardware_ids, load_device
from perfmodel.catalog.data import read_device
from perfmodel.cost.machine import Rates, _lookup
from perfmodel.errors import BadInput, MissingData, PerfmodelError
from perfmodel.report.hardware_page import figures
from perfmodel.spec.hardware import Device
from perfmodel.spec.workload import Workload

FOLDER = Path(__file__).resolve().parent.parent / "hardware"
FILES = sorted(FOLDER.glob("*.yaml"))
NEEDED = {
    "b300-sxm",
    "gb300",
    "b200-sxm",
    "gb200",
    "h200-sxm",
    "h200-nvl",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h800-sxm",
    "h20",
    "a100-sxm-80g",
    "a100-sxm-40g",
    "a100-pcie-80g",
    "a100-pcie-40g",
    "a800-sxm-80g",
    "a800-pcie-80g",
    "l40s",
    "l40",
    "l20",
    "l4",
    "a10",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000-server",
    "rtx-6000-ada",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
    "ascend-910b1",
    "ascend-910b2",
    "ascend-910b3",
    "ascend-910b4",
    "ascend-910c-die",
    "ascend-950pr",
    "gb10",
}


@pytest.fixture
def record():
    return yaml.safe_load((FOLDER / "h100-sxm.yaml").read_text())


def broken(record, path, value):
    changed = copy.deepcopy(record)
    *parents, last = path.split("/")
    here = changed
    for part in parents:
        here = here[part]
    here[last] = value
    return changed


def refused(record, path, value):
    with pytest.raises(ValidationError) as caught:
        Device.model_validate(broken(record, path, value))
    return str(caught.value)


def test_needed_devices_exist():
    assert set(hardware_ids()) >= NEEDED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_loads_and_every_figure_has_a_page_or_is_a_prior(path):
    device = read_device(path)
    assert device.id == path.stem
    cited = {figure.source for _, figure in figures(device)}
    for name, figure in figures(device):
        url = device.sources[figure.source].url
        assert url.startswith("https://") or figure.kind == "prior", name
    collectives = device.measured.collectives
    cited |= {collectives.source} if collectives else set()
    cited |= {o.source for _, figure in figures(device) for o in figure.alternatives}
    assert set(device.sources) == cited


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_number_is_text_and_no_efficiency_is_kept(path):
    text = path.read_text()
    assert not re.search(r"\b(efficiency|mfu|utili[sz]ation)\b", text, re.I)

    def walk(part, name):
        if isinstance(part, dict):
            for key, value in part.items():
                walk(value, str(key))
        elif isinstance(part, list):
            for value in part:
                walk(value, name)
        elif isinstance(part, str):
            assert not re.fullmatch(r"[\d.]+e\d+", part), f"{name}: {part} is read as text"

    walk(yaml.safe_load(text), "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ordered_peaks(path):
    """Eight bits are never slower than sixteen, except where int8 units were cut."""
    peaks = {k: f.value for k, f in load_device(path.stem).peak_flop_per_s.items() if f.value}
    if "fp8" in peaks:
        assert peaks["fp8"] >= peaks["bf16"]
    if "tf32" in peaks:
        assert peaks["tf32"] <= peaks["bf16"]


@pytest.mark.parametrize(
    ("device", "path", "value"),
    [
        ("h100-sxm", "peak_flop_per_s", 989.4e12),
        ("b300-sxm", "memory", 7.75e12),
        ("h200-sxm", "memory", 4.8e12),
        ("rtx-4090", "memory", 1.008e12),
    ],
)
def test_known_figures(device, path, value):
    found = load_device(device)
    figure = found.peak("bf16") if path == "peak_flop_per_s" else found.memory.bandwidth_bytes_per_s
    assert figure.value == pytest.approx(value)


@pytest.mark.parametrize(("device", "gib"), [("b300-sxm", 268.6), ("rtx-4090", 23.5)])
def test_usable_memory_is_what_the_driver_leaves(device, gib):
    assert round(load_device(device).usable_bytes / 2**30, 1) == gib


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("peak_flop_per_s/bf16/value", 989.4, "not plausible"),
        ("peak_flop_per_s/bf16/value", 989.4e9, "off by a prefix"),
        ("peak_flop_per_s/bf16/value", 989.4e15, "not plausible"),
        ("peak_flop_per_s/bf16/value", "9.894e14", "valid number"),
        ("peak_flop_per_s/bf16/value", True, "valid number"),
        ("peak_flop_per_s/bf16/value", float("nan"), "finite"),
        ("peak_flop_per_s/bf16/value", float("inf"), "finite"),
        ("peak_flop_per_s/bf16/value", -9.894e14, "greater than 0"),
        ("peak_flop_per_s/bf16/efficiency", 0.8, "Extra inputs"),
        ("peak_flop_per_s/bf16/source", "nowhere", "no entry for 'nowhere'"),
        ("peak_flop_per_s/bf16/kind", "guess", "datasheet"),
        ("memory/bandwidth_bytes_per_s/value", 3.35, "not plausible"),
        ("memory/bandwidth_bytes_per_s/value", 3.35e9, "off by a prefix"),
        ("memory/bandwidth_bytes_per_s/value", None, "a number is needed"),
        ("memory/usable_bytes/value", 9.9e10, "more than capacity"),
        ("memory/colour", "red", "Extra inputs"),
        ("link/bytes_per_s_per_direction/value", 900e9, "both directions"),
        ("link/bytes_per_s_per_direction/value", 450.0, "not plausible"),
        ("link/bytes_per_s_per_direction/value", None, "needs a rate"),
        ("link/domain_size", True, "valid integer"),
        ("link/domain_size", 0, "greater than or equal to 1"),
        ("link/p2p", "yes", "valid boolean"),
        ("link/topology", "star", "switch"),
        ("network/bytes_per_s_per_direction/value", 400e9 * 1.5, "400 Gb/s is 5e"),
        ("measured/gemm_flop_per_s/bf16/value", 2.5e15, "more than twice the peak"),
        ("family", "volta", "blackwell"),
        ("id", "H100 SXM", "pattern"),
    ],
)
def test_slips_are_refused(record, path, value, why):
    assert why in refused(record, path, value)


def test_both_directions_counted_is_caught_for_pcie_too():
    record = yaml.safe_load((FOLDER / "l40s.yaml").read_text())
    assert "both directions" in refused(record, "link/bytes_per_s_per_direction/value", 64e9)


def test_a_missing_dtype_is_refused_and_named():
    with pytest.raises(
        MissingData, match=r"A100.* has no fp8 matrix rate.* it has .*bf16"
    ) as found:
        load_device("a100-sxm-80g").peak("fp8")
    assert found.value.exit_code == 4


def test_block_formats_run_at_the_plain_rate():
    device = load_device("h100-sxm")
    assert device.peak("fp8_block") == device.peak("fp8")


def test_roof_is_the_larger_of_datasheet_and_measured():
    card = load_device("rtx-5090")
    assert card.roof_flop_per_s("bf16") == pytest.approx(254e12)
    assert card.peak("bf16").value == pytest.approx(209.5e12)
    assert load_device("h100-sxm").roof_flop_per_s("bf16") == pytest.approx(989.4e12)
    assert load_device("h100-sxm").roof_bytes_per_s() == pytest.approx(3.35e12)


@pytest.mark.parametrize("name", hardware_ids())
def test_every_device_has_rates_for_what_it_has_peaks_for(name):
    device = load_device(name)
    rates = Rates.of(device)
    for dtype, figure in device.peak_flop_per_s.items():
        if figure.value is not None:
            assert rates.roof(dtype) >= figure.value


def test_figures_are_frozen():
    device = load_device("l4")
    with pytest.raises(ValidationError):
        device.title = "L5"


def test_file_name_must_be_the_id(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text((FOLDER / "l4.yaml").read_text())
    with pytest.raises(BadInput, match=r"call the file l4\.yaml"):
        read_device(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_listed_device_has_the_rates_that_the_default_model_needs(path):
    """Or its platform has no engine here: no device is listed that nothing can be asked of."""
    broken: set[str | None] = set()
    try:
        predict(Workload(frames=33), f"1x{path.stem}", parallel="single")
    except PerfmodelError as error:
        broken = {problem.rule_id for problem in error.problems}
    assert broken <= {"device-not-in-engine"}


def test_a_rate_that_no_option_names_is_not_advised_by_one():
    with pytest.raises(MissingData) as error:
        _lookup({"bf16": 1e14}, "tf32", "some-device")
    assert "choose one with --dtype" not in str(error.value)
    with pytest.raises(MissingData, match="choose one with --dtype"):
        _lookup({"bf16": 1e14}, "fp8", "some-device")


@pytest.mark.parametrize(
    "boards",
    [
        ("b300-sxm", "gb300"),
        ("b200-sxm", "gb200"),
        ("h100-sxm", "h200-sxm", "h800-sxm", "h20", "h100-nvl", "h200-nvl", "h100-pcie"),
        ("a100-sxm-80g", "a100-sxm-40g", "a100-pcie-80g", "a100-pcie-40g", "a800-sxm-80g"),
        ("l40", "l40s", "rtx-6000-ada", "rtx-4090", "l20", "l4"),
        ("rtx-pro-6000-server", "rtx-5090"),
        ("mi300x", "mi325x"),
        ("mi350x", "mi355x"),
    ],
)
def test_boards_of_one_chip_state_the_same_figures(boards):
    """A figure that one of them lacks is made up otherwise for it than for its siblings."""

    def stated(name):
        device = load_device(name)
        one_by_one = {
            "exp_per_s": device.exp_per_s,
            "vector_flop_per_s": device.vector_flop_per_s,
            "l2_bytes": device.memory.l2_bytes,
            **dict(device.compute),
        }
        known = {key for key, figure in one_by_one.items() if figure and figure.value}
        return known | {key for key, figure in device.peak_flop_per_s.items() if figure.value}

    assert {name: stated(name) for name in boards} == dict.fromkeys(boards, stated(boards[0]))
