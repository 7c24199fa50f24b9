"""Tables of devices: the list, and all figures of one with their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from perfmodel.report.page import Column, Page
from perfmodel.spec.hardware import Device, Figure
from perfmodel.units import GIB, GIGA, KILO, MEGA, TERA

UNKNOWN = "-"
SHOWN_DTYPES = ("bf16", "fp8", "nvfp4", "mxfp4")
PEAK_COLUMNS = (("bf16", ("bf16",)), ("fp8", ("fp8",)), ("fp4", ("nvfp4", "mxfp4")))
# Suffix of a field, and how it is shown: unit and divisor.
UNITS = (
    ("flop_per_s", "TFLOP/s", TERA),
    ("exp_per_s", "Texp/s", TERA),
    ("bytes_per_s", "GB/s", GIGA),
    ("bytes_per_s_per_direction", "GB/s per direction", GIGA),
    ("usable_bytes", "GiB", GIB),
    ("l2_bytes", "MB", MEGA),
    ("bytes", "GB", GIGA),
    ("_hz", "MHz", MEGA),
    ("tdp_w", "W", 1.0),
)


def row_of(device: Device) -> dict[str, object]:
    """The main figures of a device, units in the keys."""
    peaks = {
        f"{dtype}_flop_per_s": figure.value
        if (figure := device.peak_flop_per_s.get(dtype))
        else None
        for dtype in SHOWN_DTYPES
    }
    return {
        "id": device.id,
        "title": device.title,
        "vendor": device.vendor,
        "family": device.family,
        **peaks,
        "usable_bytes": device.usable_bytes,
        "memory_bytes_per_s": device.memory.bandwidth_bytes_per_s.value,
        "link": device.link.kind,
        "link_bytes_per_s_per_direction": device.link.bytes_per_s_per_direction.value,
        "devices_joined": device.link.domain_size,
        "node_size": device.node_size,
        "aliases": list(device.aliases),
    }


def list_page(devices: Sequence[Device]) -> Page:
    """One row a device."""
    page = Page()
    page.table(
        (
            Column("id", [device.id for device in devices], right=False),
            *(_peak_column(name, dtypes, devices) for name, dtypes in PEAK_COLUMNS),
            Column("usable\nGiB", [f"{device.usable_bytes / GIB:.1f}" for device in devices]),
            Column(
                "memory\nGB/s",
                [_scaled(device.memory.bandwidth_bytes_per_s, GIGA) for device in devices],
            ),
            Column("link", [_short(device.link.kind) for device in devices], right=False, drop=1),
            Column(
                "link\nGB/s",
                [_scaled(device.link.bytes_per_s_per_direction, GIGA) for device in devices],
            ),
            Column("joins\nGPUs", [str(_joined(device)) for device in devices], drop=4),
        )
    )
    page.paragraph(
        "Dense matrix peaks; link rates per device and direction. `perfmodel hardware show NAME` "
        "prints every figure with its source."
    )
    return page


def _short(kind: str) -> str:
    """The first words, without a bracket that would stay open."""
    if "xGMI" in kind:
        return "xGMI"
    words = " ".join(kind.replace(",", "").split()[:2])
    return words if words.count("(") == words.count(")") else words.partition(" (")[0]


def _joined(device: Device) -> int:
    return 1 if device.link.topology == "pcie" else device.link.domain_size


def _peak_column(name: str, dtypes: Sequence[str], devices: Sequence[Device]) -> Column:
    cells = []
    for device in devices:
        known = [_scaled(device.peak_flop_per_s.get(dtype), TERA) for dtype in dtypes]
        cells.append(next((cell for cell in known if cell != UNKNOWN), UNKNOWN))
    return Column(f"{name}\nTFLOP/s", cells)


def _scaled(figure: Figure | None, divisor: float) -> str:
    if figure is None or figure.value is None:
        return UNKNOWN
    return number(figure.value / divisor)


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    if value >= KILO:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def show_page(device: Device) -> Page:
    """All figures of a device, the kind of evidence and where each was read."""
    page = Page()
    counted = f"; {device.counts}" if device.counts else ""
    page.paragraph(f"{device.vendor} {device.title}: {device.architecture}{counted}")
    page.paragraph(
        f"{device.node_size} in a host; {device.link.kind} ({device.link.topology}) joins "
        f"{_joined(device)}; {'peer access' if device.link.p2p else 'no peer access'}"
    )
    if device.aliases:
        page.items(device.aliases, label="also called ")
    page.blank()
    found = list(figures(device))
    columns = tuple(zip(*(_cells(*item) for item in found), strict=True))
    headers = ("figure", "value", "unit", "kind", "source")
    page.table(
        Column(header, column, right=header == "value", drop=-1 if header == "kind" else 0)
        for header, column in zip(headers, columns, strict=True)
    )
    _collectives(page, device)
    page.blank()
    for path, figure in found:
        if figure.note:
            page.paragraph(figure.note, label=f"{path}: ", indent=2)
        for other in figure.alternatives:
            value, unit = shown(path, other.value)
            page.paragraph(f"also {value} {unit} ({other.source}, {other.kind})", f"{path}: ", 2)
    page.blank()
    for key, source in device.sources.items():
        page.code(f"  {key}: {source.what}, {source.url}")
    for note in device.notes:
        page.paragraph(note, indent=2)
    return page


def _collectives(page: Page, device: Device) -> None:
    measured = device.measured.collectives
    if measured is None:
        return
    ranks = sorted({n for by_ranks in measured.busbw_bytes_per_s.values() for n in by_ranks})
    page.blank()
    page.table(
        (
            Column("bus bandwidth, GB/s", list(measured.busbw_bytes_per_s), right=False),
            *(
                Column(
                    f"{n} ranks",
                    [
                        number(by_ranks[n] / GIGA) if n in by_ranks else UNKNOWN
                        for by_ranks in measured.busbw_bytes_per_s.values()
                    ],
                )
                for n in ranks
            ),
        )
    )
    page.paragraph(f"{measured.kind}, {measured.source}: {measured.note or ''}", indent=2)


def _cells(path: str, figure: Figure) -> tuple[str, str, str, str, str]:
    value, unit = shown(path, figure.value)
    return path, value, unit, figure.kind, figure.source


def figures(device: Device) -> Iterator[tuple[str, Figure]]:
    """(dotted field, figure) of a device, in file order."""

    def walk(part: object, path: str) -> Iterator[tuple[str, Figure]]:
        if isinstance(part, Figure):
            yield path, part
        elif isinstance(part, dict):
            for key, value in part.items():
                yield from walk(value, f"{path}.{key}")
        elif isinstance(part, BaseModel):
            for key in type(part).model_fields:
                yield from walk(getattr(part, key), f"{path}.{key}" if path else key)

    yield from walk(device, "")


def shown(path: str, value: float | None) -> tuple[str, str]:
    """A value in the unit that people use, by the ending of its field."""
    if value is None:
        return "none", ""
    names = [part for part in path.split(".") if part]
    for suffix, unit, divisor in UNITS:
        if any(name.endswith(suffix) for name in names):
            return number(value / divisor), unit
    return number(value), ""
