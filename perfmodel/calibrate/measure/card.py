"""A description of a device that the catalogue does not have, from its own measurements.

The file is an ordinary ``hardware/<id>.yaml``: best measured rates stand where a datasheet would.
"""

from __future__ import annotations

import csv
import math
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perfmodel.calibrate.measure.device import Device
from perfmodel.errors import PerfmodelError
from perfmodel.units import GIGA, MEGA, MIB, US_PER_S

_SOURCE = "bench"
_LARGE_BYTES = 8 * MIB
_NETWORK_BYTES_PER_S = 1.25 * GIGA
_FAMILY = {
    7: "ampere",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    11: "blackwell",
    12: "blackwell-rtx",
}
_ADA = (8, 9)

Row = dict[str, str]


def catalogue_id(device: Device) -> str | None:
    """The id of the catalogue's device that prints this name; None if there is none."""
    if device.is_cpu:
        return None
    from perfmodel.catalog import parse_gpus

    try:
        return parse_gpus(device.name).device.id
    except PerfmodelError:
        return None


def device_id(device: Device) -> str:
    """``cpu-amd-epyc-2t``: kind, name and (on a CPU) threads, in the characters of an id."""
    name = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return f"cpu-{name}-{torch.get_num_threads()}t" if device.is_cpu else name


def write(device: Device, out: Path) -> Path | None:
    """Write ``<out>/hardware/<id>.yaml`` and return its path.

    None when the records hold no matrix product or no copy: without a peak and a memory rate
    there is nothing to describe.  ``PERFMODEL_PATH=<out>`` makes the device known.
    """
    import yaml

    record = describe(device, out)
    if record is None:
        return None
    path = out / "hardware" / f"{record['id']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(record, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def describe(device: Device, out: Path) -> dict[str, Any] | None:
    """The content of the file: peaks and rates are the best that the records show."""
    peaks = _peaks(out)
    memory = max((_copy_bytes_per_s(row) for row in _rows(out / "pointwise.csv")), default=0.0)
    if not peaks or not memory:
        return None
    capacity = _capacity_bytes(device)
    ranks = _best_by(_rows(out / "collective.csv"), "num_ranks", _busbw_bytes_per_s)
    transfer = _best_by(_rows(out / "transfer.csv"), "direction", _copied_bytes_per_s)
    link = max(ranks.values(), default=memory / 2)
    to_host = transfer.get("h2h" if device.is_cpu else "d2h", memory / 2)
    return {
        "id": device_id(device),
        "vendor": device.name.split()[0],
        "title": device.name,
        "names": [device.name],
        "architecture": platform.machine() if device.is_cpu else _capability(device),
        "family": _family(device),
        "node_size": max([1, *(int(count) for count in ranks)]),
        "peak_flop_per_s": {dtype: _figure(rate) for dtype, rate in sorted(peaks.items())},
        "memory": {
            "kind": "host memory" if device.is_cpu else "device memory",
            "capacity_bytes": _figure(capacity),
            "usable_bytes": _figure(capacity),
            "bandwidth_bytes_per_s": _figure(memory),
            "l2_bytes": _figure(float(device.cache_bytes)),
        },
        "compute": _compute(device, out),
        "link": {
            "kind": "shared memory" if device.is_cpu else "as measured",
            "bytes_per_s_per_direction": _figure(link),
            "topology": "switch",
            "domain_size": max([1, *(int(count) for count in ranks)]),
        },
        "host_link": {
            "kind": "memory copy" if device.is_cpu else "as measured",
            "bytes_per_s_per_direction": _figure(to_host),
        },
        "network": {
            "kind": "10 Gb/s Ethernet",
            "bytes_per_s_per_direction": {
                "value": _NETWORK_BYTES_PER_S,
                "source": "assumption",
                "kind": "prior",
            },
        },
        "sources": {
            _SOURCE: {"url": "perfmodel bench", "what": "best rates in the records beside it"},
            "assumption": {"url": "none", "what": "not measured; edit it before using a network"},
        },
        "notes": ["Written by `perfmodel bench`: replace measured peaks by datasheet ones."],
    }


def _figure(value: float) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": _SOURCE, "kind": "measured"}


def _compute(device: Device, out: Path) -> dict[str, Any]:
    """Units and clock; an accelerator that rests has slowed down, so its rows tell the clock."""
    clock_mhz: float | None
    if device.is_cpu:
        units, clock_mhz = float(torch.get_num_threads()), device.clock_mhz()
    else:
        properties = device.runtime.get_device_properties(device.torch_device)
        count = getattr(properties, "multi_processor_count", None)
        units = float(count or getattr(properties, "cube_core_num", None) or 1)
        rows = _rows(out / "gemm.csv")
        clock_mhz = max((float(row["clock_mhz"] or 0) for row in rows), default=0.0)
    found = {"multiprocessors": _figure(units)}
    return found | ({"boost_hz": _figure(clock_mhz * MEGA)} if clock_mhz else {})


def _capacity_bytes(device: Device) -> float:
    if device.is_cpu:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float(device.runtime.mem_get_info(device.torch_device)[1])


def _capability(device: Device) -> str:
    if device.kind != "cuda":
        return device.kind
    major, minor = device.runtime.get_device_capability(device.torch_device)
    return f"compute capability {major}.{minor}"


def _family(device: Device) -> str:
    """Which family's priors stand in for laws without records."""
    if device.is_cpu:
        return "cpu"
    if device.kind == "npu":
        return "davinci"
    if torch.version.hip:
        return "cdna3"
    capability = device.runtime.get_device_capability(device.torch_device)
    return "ada" if capability == _ADA else _FAMILY.get(capability[0], "blackwell")


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _best_by(rows: list[Row], column: str, rate: Callable[[Row], float]) -> dict[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        best[row[column]] = max(best.get(row[column], 0.0), rate(row))
    return {name: value for name, value in best.items() if value > 0}


def _seconds(row: Row) -> float:
    return float(row["latency_us"]) / US_PER_S


def _peaks(out: Path) -> dict[str, float]:
    """Best rate by dtype over matrix products, attention and convolution [FLOP/s].

    Empty without matrix products.
    """
    peaks = _best_by(_rows(out / "gemm.csv"), "dtype", _gemm_flop_per_s)
    for other in (
        _best_by(_rows(out / "attention.csv"), "dtype", _attention_flop_per_s),
        _best_by(_rows(out / "conv.csv"), "dtype", _conv_flop_per_s),
    ):
        peaks = {dtype: max(rate, other.get(dtype, 0.0)) for dtype, rate in peaks.items()}
    return peaks


def _product(row: Row, *columns: str) -> float:
    return float(math.prod(int(row[name]) for name in columns))


def _gemm_flop_per_s(row: Row) -> float:
    return 2.0 * _product(row, "m", "n", "k") / _seconds(row)


def _attention_flop_per_s(row: Row) -> float:
    work = 4.0 * _product(row, "batch", "num_heads", "seq_q", "seq_kv", "head_dim")
    return work * (0.5 if row["causal"] == "True" else 1.0) / _seconds(row)


def _conv_flop_per_s(row: Row) -> float:
    voxels = _product(row, "batch", "out_t", "out_h", "out_w")
    taps = _product(row, "in_channels", "out_channels", "kt", "kh", "kw")
    return 2.0 * voxels * taps / _seconds(row)


def _copy_bytes_per_s(row: Row) -> float:
    """Rate of plain copies and sums that are too large for a cache to hold; 0 for others."""
    plain = row["what"] in ("copy", "add") and int(row["bytes_moved"]) >= _LARGE_BYTES
    return int(row["bytes_moved"]) / _seconds(row) if plain else 0.0


def _copied_bytes_per_s(row: Row) -> float:
    return int(row["bytes_moved"]) / _seconds(row)


def _busbw_bytes_per_s(row: Row) -> float:
    """Bus bandwidth as nccl-tests defines it, of all-gather."""
    if row["collective"] != "all_gather":
        return 0.0
    ranks = int(row["num_ranks"])
    return (ranks - 1) / ranks * int(row["message_bytes"]) / _seconds(row)
