"""Laws as data: parameters from a fit file, else the medians of an architecture family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput, MissingData, Problem

FAMILY_ORDER: dict[str, tuple[str, ...]] = {
    "blackwell": ("blackwell", "hopper", "ampere"),
    "blackwell-rtx": ("ada", "ampere"),
    "hopper": ("hopper", "blackwell", "ampere"),
    "ada": ("ada", "ampere"),
    "ampere": ("ampere", "ada"),
    "cdna3": ("hopper", "ampere"),
    "cdna4": ("hopper", "blackwell"),
    "davinci": ("davinci",),
    "davinci-v3": ("davinci",),
}
"""Which families lend their median fractions, nearest first; others try all."""


LINKS_OF = "links of "
"""What the origin of collectives begins with that a device with the same links lent."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A law parameter: what it means and between which values it is physical.

    Attributes:
        name: with its unit.
        default: used where neither a fit nor a family knows better.
        low, high: physical bounds, also those of the fit.
        meaning: one line for the table of parameters.
        log: searched on a logarithmic scale.
        grid: the only values it takes, where it is not continuous.
        pull: how strongly a fit with few rows stays at the default, 1 for most.
    """

    name: str
    default: float
    low: float
    high: float
    meaning: str
    log: bool = False
    grid: tuple[float, ...] = ()
    pull: float = 1.0


@dataclass(frozen=True, slots=True)
class Law:
    """Parameters of one law on one device.

    Attributes:
        name: ``gemm/bf16``, ``attention/bf16``, ``collective/all_reduce``...
        values: parameter by name.
        kernels: rate factor by kernel, relative to the law.
        kernel_exps: factor on the exponentials by kernel (attention); 1 where absent.
        kernel_dims: head widths that each attention kernel was measured at.
        provenance: ``fitted`` or ``prior``.
        range: smallest and largest dimension of the rows behind it.
        origin: fit id, or who lent it: a family, or a device with the same links.
        power_limited_frac: how far the power limit of the device holds a long run of this law
            below a short burst: 1 fully, 0 not at all.
    """

    name: str
    values: Mapping[str, float]
    kernels: Mapping[str, float] = field(default_factory=dict)
    kernel_exps: Mapping[str, float] = field(default_factory=dict)
    kernel_dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    provenance: str = "prior"
    range: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    origin: str = ""
    power_limited_frac: float = 1.0

    @property
    def of_family(self) -> bool:
        """Whether relatives lent it, not a device with the same links."""
        return self.provenance == "prior" and not self.origin.startswith(LINKS_OF)

    def get(self, parameter: Parameter) -> float:
        """Value of `parameter`, its default when the law does not carry it."""
        return float(self.values.get(parameter.name, parameter.default))


@dataclass(frozen=True, slots=True)
class NamedPrior:
    """A number that no record in the repository measures: bounded, with its reason."""

    value: float
    low: float
    high: float
    meaning: str
    source: str = ""


def values_of(parameters: tuple[Parameter, ...], law: Law | None) -> dict[str, float]:
    """Parameter values of `law` by name; defaults where there is no law."""
    if law is None:
        return {p.name: p.default for p in parameters}
    return {p.name: law.get(p) for p in parameters}


def laws_of_fit(fit: Mapping[str, Any]) -> dict[str, Law]:
    """Laws of a fit file (DESIGN section 4 format).

    Raises:
        MissingData: a law of another version than this program's.
    """
    from perfmodel.cost.versions import LAW_VERSIONS

    laws: dict[str, Law] = {}
    for name, entry in fit.get("laws", {}).items():
        kind = name.split("/")[0]
        if entry.get("version") != LAW_VERSIONS.get(kind):
            raise MissingData(_old_version(fit, name, entry.get("version")))
        laws[name] = Law(
            name=name,
            values={key: float(p["value"]) for key, p in entry["parameters"].items()},
            **kernel_factors(entry),
            provenance="fitted",
            range={key: (float(lo), float(hi)) for key, (lo, hi) in entry["range"].items()},
            origin=str(fit.get("fit_id", "")),
        )
    return laws


def _with_both_halves(laws: dict[str, Law]) -> dict[str, Law]:
    """The 16-bit types run at one rate: a law measured in fp16 alone serves bf16, by its name."""
    for name in [name for name in laws if name.endswith("/fp16")]:
        served = name.replace("/fp16", "/bf16")
        laws.setdefault(served, replace(laws[name], name=served))
    return laws


def kernel_factors(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Factors of the kernels of a stored law, as keyword arguments of `Law`."""
    kernels = {
        name: found if isinstance(found, Mapping) else {"rate": found}
        for name, found in entry.get("kernels", {}).items()
    }
    return {
        "kernels": {name: float(k["rate"]) for name, k in kernels.items()},
        "kernel_exps": {name: float(k.get("exp_rate", 1.0)) for name, k in kernels.items()},
        "kernel_dims": {name: tuple(k.get("head_dims", ())) for name, k in kernels.items()},
    }


def _old_version(fit: Mapping[str, Any], name: str, found: object) -> Problem:
    device = fit.get("device", "?")
    return Problem(
        "fit-version",
        f"fit {fit.get('fit_id')} holds {name} as law version {found}, which this program does "
        f"not read; refit: perfmodel calibrate --records DIR --device {device}",
        field="--fit",
        value=str(fit.get("fit_id")),
    )


@cache
def _priors(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise BadInput(Problem("priors", f"{path}: cannot be read as JSON: {err}")) from err
    return data


def load_priors() -> dict[str, Any]:
    """`calibration/priors.json` of the last data folder that has one; {} when there is none."""
    from perfmodel.catalog import data_roots

    found: dict[str, Any] = {}
    for root in data_roots():
        path = Path(root) / "calibration" / "priors.json"
        if path.is_file():
            found = _priors(path)
    return found


def family_laws(priors: Mapping[str, Any], family: str) -> dict[str, Law]:
    """Median laws of `family`; a law it lacks comes from the nearest related family."""
    families = priors.get("families", {})
    order = FAMILY_ORDER.get(family, tuple(families))
    laws: dict[str, Law] = {}
    for lender in order:
        for name, entry in families.get(lender, {}).items():
            if name not in laws:
                laws[name] = Law(
                    name=name,
                    values=entry["parameters"],
                    **kernel_factors(entry),
                    origin=f"family {lender}",
                )
    return laws


COLLECTIVE = "collective/"
KERNELS = ("gemm/", "attention/")
"""Laws without which a device counts as not measured."""


def has_kernels(fit: Mapping[str, Any] | None) -> bool:
    """Whether a fit holds products and attention, not collectives alone."""
    laws = (fit or {}).get("laws", {})
    return all(any(name.startswith(kind) for name in laws) for kind in KERNELS)


def _lent_collectives(device_id: str, lender: str) -> dict[str, Law]:
    """Fitted collectives of a device with the same links, as priors."""
    from perfmodel.catalog import load_fit

    if (fit := load_fit(lender)) is None:
        where = f"hardware/{device_id}.yaml: link.same_as"
        message = f'{where}: "{lender}" has no fit (calibration/fits); the id of one that has'
        raise BadInput(Problem("hardware-file", message, field=where, value=lender))
    return {
        name: replace(law, provenance="prior", origin=f"{LINKS_OF}{lender}")
        for name, law in laws_of_fit(fit).items()
        if name.startswith(COLLECTIVE)
    }


def load_laws(
    device_id: str,
    family: str,
    fit: Mapping[str, Any] | None = None,
    *,
    same_links: str | None = None,
) -> tuple[dict[str, Law], dict[str, NamedPrior]]:
    """Laws of a device and the named priors.

    Its fit, over the collectives of a device with the same links (`Link.same_as`), over the medians
    of its family.

    Raises:
        BadInput: the device with the same links has no fit.
    """
    from perfmodel.catalog import load_fit

    priors = load_priors()
    if fit is None:
        fit = load_fit(device_id)
    laws = family_laws(priors, str((fit or {}).get("prior_family", family)))
    if same_links is not None:
        laws |= _lent_collectives(device_id, same_links)
    if fit is not None:
        laws.update(_with_both_halves(laws_of_fit(fit)))
    named = {
        name: NamedPrior(
            float(p["value"]),
            float(p["bounds"][0]),
            float(p["bounds"][1]),
            p.get("meaning", ""),
            p.get("source", ""),
        )
        for name, p in priors.get("named", {}).items()
    }
    return laws, named
