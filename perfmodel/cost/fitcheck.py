"""Whether a fit file that a user names holds what the laws need; shipped fits are tested instead.

Every finding is one problem that names the file, the field, the value and what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.cost import attention, conv, gemm, media, pointwise, protocols, quantize, transfer
from perfmodel.cost.fits import Parameter
from perfmodel.cost.versions import LAW_VERSIONS
from perfmodel.errors import BadInput, Problem
from perfmodel.files import Unreadable, read_json

SCHEMA_VERSION = 1
ROUNDED = 1e-5
"""Stored values have six digits: a bound may be missed by that much."""
MOST_SHOWN = 8
RULE = "fit-file"
REFIT = "perfmodel calibrate --records DIR"
MAKE = f"make one: {REFIT}"


def read_fit(path: Path, without: Collection[str] = ()) -> dict[str, Any]:
    """The fit of a file, checked from end to end.

    Args:
        path: of the file.
        without: laws, or kinds of laws, that are dropped unchecked.

    Raises:
        BadInput: unreadable, no fit, or with values that no law can take; all of them.
    """
    try:
        data = read_json(path)
    except Unreadable as error:
        raise BadInput(_problem(path, "file", f"is no fit file ({error}); {MAKE}")) from None
    if without and isinstance(data, dict) and isinstance(data.get("laws"), dict):
        kept = {k: v for k, v in data["laws"].items() if not {k, k.split("/")[0]} & {*without}}
        data = {**data, "laws": kept}
    found = list(problems_of(data, path))
    if found:
        more = len(found) - MOST_SHOWN
        rest = [_problem(path, "file", f"{more} more of the kind; {MAKE}")] if more > 0 else []
        raise BadInput(*found[:MOST_SHOWN], *rest)
    fit: dict[str, Any] = data
    return fit


def own_fit(path: Path, asked: str) -> dict[str, Any]:
    """The checked fit of a file, for the device that is asked for.

    Raises:
        BadInput: what `read_fit` refuses; a fit of another device of the catalogue.
    """
    fit = read_fit(path)
    found = device_problem(path, fit, asked)
    if found is not None and found.severity == "error":
        raise BadInput(found)
    return fit


def device_problem(path: Path, fit: Mapping[str, Any], asked: str) -> Problem | None:
    """A fit of another device: an error where both are in the catalogue, else a warning."""
    from perfmodel.catalog import hardware_ids

    own = str(fit["device"])
    if own == asked:
        return None
    listed = set(hardware_ids())
    message = (
        f"{path}: device: the fit is of {own}, asked is {asked}; "
        f"a fit of {asked}: perfmodel calibrate --records DIR --device {asked}"
    )
    severity: Any = "error" if {own, asked} <= listed else "warning"
    return Problem("fit-device", message, "--fit", own, (asked,), severity=severity)


def shadow_problem(device_id: str) -> Problem | None:
    """A warning where a user's file describes a shipped device and has no fit of its own."""
    from perfmodel.catalog import shadowing_file

    path = shadowing_file(device_id)
    if path is None:
        return None
    message = (
        f"{path} describes {device_id} anew, and its laws are still those of the shipped fit; "
        f"fit yours: perfmodel calibrate --records DIR --device {device_id}"
    )
    return Problem("fit-device", message, str(path), device_id, severity="warning")


def host_facts(p2p: bool | None, sockets: int | None) -> dict[str, bool | int]:
    """What a fit of collectives keeps of the host it was measured on; empty for the usual one."""
    facts = {"p2p": p2p, "sockets": sockets}
    return {name: value for name, value in facts.items() if value is not None}


def host_of(fit: Mapping[str, Any]) -> dict[str, Any]:
    """The host facts of the collective laws of a fit."""
    facts: dict[str, Any] = {}
    for name, entry in fit["laws"].items():
        if name.startswith("collective/"):
            facts |= entry.get("host", {})
    return facts


def host_problem(fit: Mapping[str, Any], p2p: bool, sockets: int) -> Problem | None:
    """A warning where collectives were measured on another host than the one asked for.

    Their law holds shares of the link that they crossed there.
    """
    asked = {"p2p": p2p, "sockets": sockets}
    differ = {name: value for name, value in host_of(fit).items() if value != asked[name]}
    if not differ:
        return None
    flags = {"p2p": "--no-p2p", "sockets": f"--sockets {differ.get('sockets')}"}
    given = " ".join(flags[name] for name in differ)
    message = (
        f"the collectives of fit {fit['fit_id']} were measured with {given}; they are right on "
        f"such a host only: add {given}, or calibrate collectives on this one"
    )
    return Problem("fit-host", message, "--fit", given, severity="warning")


def problems_of(data: object, path: Path) -> Iterator[Problem]:
    """Everything that is wrong with a fit document."""
    if not isinstance(data, dict):
        yield _problem(path, "file", f"{_shown(data)} is no fit, which is an object; {MAKE}")
        return
    version = data.get("schema_version")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        what = f"{_given(data, 'schema_version')}; this program reads {SCHEMA_VERSION}; {MAKE}"
        yield _problem(path, "schema_version", what)
    for name in ("device", "fit_id"):
        if not isinstance(data.get(name), str) or not data[name]:
            yield _problem(path, name, f"{_given(data, name)}; a text is needed")
    if "prior_family" in data and not isinstance(data["prior_family"], str):
        yield _problem(path, "prior_family", f"{_given(data, 'prior_family')}; a text is needed")
    laws = data.get("laws")
    if not isinstance(laws, dict):
        yield _problem(path, "laws", f"{_given(data, 'laws')}; an object of laws is needed; {MAKE}")
        return
    for name, entry in laws.items():
        yield from _law(path, str(name), entry)


def _law(path: Path, name: str, entry: object) -> Iterator[Problem]:
    where = f"laws.{name}"
    kind = name.partition("/")[0]
    if kind not in LAW_VERSIONS:
        known = ", ".join(LAW_VERSIONS)
        yield _problem(path, where, f"{name} is no law; kinds: {known}")
        return
    if not isinstance(entry, dict):
        yield _problem(path, where, f"{_shown(entry)}; an object is needed")
        return
    if isinstance(entry.get("version"), bool) or entry.get("version") != LAW_VERSIONS[kind]:
        reads = f"this program reads law version {LAW_VERSIONS[kind]}; refit: {REFIT}"
        yield _problem(path, f"{where}.version", f"{_given(entry, 'version')}; {reads}")
        return
    for part in ("parameters", "range"):
        if not isinstance(entry.get(part), dict):
            yield _problem(path, f"{where}.{part}", f"{_given(entry, part)}; an object is needed")
    if isinstance(entry.get("parameters"), dict):
        yield from _parameters(path, name, entry["parameters"])
    if isinstance(entry.get("range"), dict):
        for dim, pair in entry["range"].items():
            if _pair(pair) is None:
                what = f"{_shown(pair)}; [smallest, largest] is needed"
                yield _problem(path, f"{where}.range.{dim}", what)
    yield from _kernels(path, where, entry.get("kernels", {}))
    yield from _host(path, where, entry.get("host", {}))


def _parameters(path: Path, law: str, stored: Mapping[str, Any]) -> Iterator[Problem]:
    known = {p.name: p for p in parameters_of(law)}
    if missing := [name for name in known if name not in stored]:
        what = f"missing: {', '.join(missing)}; refit: {REFIT}"
        yield _problem(path, f"laws.{law}.parameters", what)
    for name, entry in stored.items():
        where = f"laws.{law}.parameters.{name}"
        if known and name not in known:
            yield _problem(path, where, f"is unknown; parameters: {', '.join(known)}")
        elif not isinstance(entry, dict):
            yield _problem(path, where, f"{_shown(entry)}; an object with value and bounds")
        else:
            yield from _value(path, where, entry, known.get(name))


def _value(
    path: Path, where: str, entry: Mapping[str, Any], known: Parameter | None
) -> Iterator[Problem]:
    value = _number(entry.get("value"))
    stated = _pair(entry.get("bounds"))
    if value is None:
        yield _problem(path, f"{where}.value", f"{_given(entry, 'value')}; a finite number")
    if "bounds" in entry and stated is None:
        what = f"{_given(entry, 'bounds')}; [smallest, largest] is needed"
        yield _problem(path, f"{where}.bounds", what)
    if value is None:
        return
    legal = (known.low, known.high) if known is not None else None
    for low, high in (pair for pair in (stated, legal) if pair is not None):
        if not low - ROUNDED * abs(low) <= value <= high + ROUNDED * abs(high):
            what = f"{value:g} is outside {low:g} to {high:g}"
            yield _problem(path, f"{where}.value", what)
            return


def _kernels(path: Path, law: str, kernels: object) -> Iterator[Problem]:
    where = f"{law}.kernels"
    if not isinstance(kernels, dict):
        yield _problem(path, where, f"{_shown(kernels)}; an object is needed")
        return
    for name, entry in kernels.items():
        factors = entry if isinstance(entry, dict) else {"rate": entry}
        for factor in ("rate", *(k for k in ("exp_rate",) if k in factors)):
            number = _number(factors.get(factor))
            if number is None or number <= 0:
                what = f"{_given(factors, factor)}; a finite number above 0"
                yield _problem(path, f"{where}.{name}.{factor}", what)
        widths = factors.get("head_dims", [])
        if not isinstance(widths, list) or not all(_whole(width) for width in widths):
            what = f"{_shown(widths)}; a list of whole numbers is needed"
            yield _problem(path, f"{where}.{name}.head_dims", what)


def _host(path: Path, law: str, host: object) -> Iterator[Problem]:
    sockets = host.get("sockets", 1) if isinstance(host, dict) else 0
    peers = host.get("p2p", True) if isinstance(host, dict) else None
    if not _whole(sockets) or not isinstance(peers, bool):
        what = f"{_shown(host)}; p2p (true or false) and sockets (a whole number) may be given"
        yield _problem(path, f"{law}.host", what)


def parameters_of(law: str) -> tuple[Parameter, ...]:
    """Parameters of the law of that name; empty where none can be fitted."""
    kind, _, rest = law.partition("/")
    if kind == "gemm":
        return gemm.parameters_of(rest)
    if kind == "collective":
        return protocols.parameters_of(law)
    return {
        "attention": attention.PARAMETERS,
        "conv": conv.PARAMETERS,
        "pointwise": pointwise.PARAMETERS,
        "quantize": quantize.PARAMETERS,
        "transfer": transfer.PARAMETERS,
        "media": media.PARAMETERS,
    }.get(kind, ())


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _pair(value: object) -> tuple[float, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    low, high = (_number(part) for part in value)
    return (low, high) if low is not None and high is not None and low <= high else None


def _given(entry: Mapping[str, Any], name: str) -> str:
    return _shown(entry[name]) if name in entry else "is missing"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f'the text "{value[:40]}"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]


def _problem(path: Path, where: str, what: str) -> Problem:
    message = f"{path}: {what}" if where == "file" else f"{path}: {where}: {what}"
    return Problem(RULE, message, field=f"{path}: {where}", value=str(path))
