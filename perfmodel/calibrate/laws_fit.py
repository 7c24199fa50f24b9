"""Which laws can be fitted: their rows, their parameters, and how rows are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.kernels import Kernels, kernels_of
from perfmodel.calibrate.links import LINK, with_links
from perfmodel.calibrate.records import Records, Rows
from perfmodel.catalog.gpus import Overrides
from perfmodel.cost import (
    attention,
    collective,
    conv,
    gemm,
    media,
    pointwise,
    protocols,
    quantize,
    transfer,
)
from perfmodel.cost.fits import Parameter
from perfmodel.cost.machine import Rates
from perfmodel.cost.versions import LAW_VERSIONS
from perfmodel.spec.hardware import Device

USUAL_HOST = Overrides()

FloatArray = NDArray[np.float64]
Factors = Mapping[str, FloatArray]
Predict = Callable[[Mapping[str, float], Rates, Rows, Factors], FloatArray]


@dataclass(frozen=True, slots=True)
class FitLaw:
    """One law with the rows that fit it.

    Attributes:
        name: ``gemm/bf16``...
        parameters: what is searched.
        rows: good rows of the records.
        kernels: of the rows; their factors are free beside the parameters.
        predict: seconds of rows from parameter values and kernel factors.
        work: what the size of a row is (FLOP or bytes).
        dims: columns whose range is kept with the fit.
        key: columns whose hash decides the half a row falls in.
    """

    name: str
    parameters: tuple[Parameter, ...]
    rows: Rows
    kernels: Kernels
    predict: Predict
    work: FloatArray
    dims: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``gemm``, ``attention``..."""
        return self.name.split("/")[0]

    def take(self, keep: NDArray[np.bool_]) -> FitLaw:
        """The law of some of its rows."""
        rows, work = self.rows.take(keep), self.work[keep]
        return replace(self, rows=rows, work=work, kernels=kernels_of(rows, work))

    @property
    def batched(self) -> bool:
        """The formula takes columns of parameter values, one row a point."""
        return self.kind == "collective"

    @property
    def version(self) -> int:
        """Version of the formula."""
        return LAW_VERSIONS[self.kind]


def _gemm(values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors) -> FloatArray:
    dtype = str(rows.text("dtype")[0])
    return gemm.gemm_time_s(
        values,
        rates,
        dtype,
        rows["m"],
        rows["n"],
        rows["k"],
        rows["batch"],
        kernel_rate=kernel["rate"],
        resident=True,
    )


def _attention(
    values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors
) -> FloatArray:
    return attention.attention_time_s(
        values,
        rates,
        str(rows.text("dtype")[0]),
        seq_q=rows["seq_q"],
        seq_kv=rows["seq_kv"],
        heads=rows["num_heads"],
        kv_heads=rows["num_kv_heads"],
        head_dim=rows["head_dim"],
        batch=rows["batch"],
        causal=np.asarray(rows.columns["causal"], bool),
        kernel_rate=kernel["rate"],
        kernel_exp=kernel["exp_rate"],
    )


def _collective(
    values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors
) -> FloatArray:
    ops = rows.text("collective")
    time = np.zeros(np.broadcast_shapes(kernel["rate"].shape, (len(rows),)))
    for op in np.unique(ops):
        here = ops == op
        time[..., here] = collective.collective_time_s(
            values,
            str(op),
            rows["message_bytes"][here],
            rows["num_ranks"][here],
            rows[LINK][here] * kernel["rate"][..., here],
            in_switch=rates.in_switch_reduce,
            far=rows["num_ranks"][here] > rates.host_ranks,
        )
    return time


def _quantize(values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors) -> FloatArray:
    what = str(rows.text("what")[0])
    return quantize.quantize_kernel_s(values, rates, what, rows["m"], rows["k"], resident=True)


def _conv(values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors) -> FloatArray:
    return conv.conv_time_s(
        values,
        rates,
        conv.multiplied_in(str(rows.text("dtype")[0]), rates),
        _voxels(rows),
        rows["in_channels"],
        rows["out_channels"],
        rows["kt"] * rows["kh"] * rows["kw"],
        rows["stride_t"] * rows["stride_h"] * rows["stride_w"],
        rate=kernel["rate"],
    )


def _voxels(rows: Rows) -> FloatArray:
    return rows["batch"] * rows["out_t"] * rows["out_h"] * rows["out_w"]


def _pointwise(
    values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors
) -> FloatArray:
    copies = np.char.find(np.char.lower(rows.text("kernel")), "copy") >= 0
    frac = np.where(copies, values["copy_frac"], values["memory_frac"])
    return values["kernel_floor_s"] + rows["bytes_moved"] / (
        rates.memory_bytes_per_s * frac * kernel["rate"]
    )


def _transfer(values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors) -> FloatArray:
    bandwidth = rates.host_link_bytes_per_s * values["link_frac"]
    return values["latency_s"] + rows["bytes_moved"] / (bandwidth * kernel["rate"])


def _media(values: Mapping[str, float], rates: Rates, rows: Rows, kernel: Factors) -> FloatArray:
    return values["start_s"] + rows["pixels"] / (values["pixels_per_s"] * kernel["rate"])


def _gemm_work(rows: Rows) -> FloatArray:
    return 2.0 * rows["m"] * rows["n"] * rows["k"] * rows["batch"]


def _attention_work(rows: Rows) -> FloatArray:
    share = np.where(np.asarray(rows.columns["causal"], bool), 2.0, 4.0)
    heads = rows["batch"] * rows["num_heads"]
    return share * heads * rows["seq_q"] * rows["seq_kv"] * rows["head_dim"]


def _conv_work(rows: Rows) -> FloatArray:
    inner = rows["in_channels"] * rows["kt"] * rows["kh"] * rows["kw"]
    return 2.0 * _voxels(rows) * rows["out_channels"] * inner


@dataclass(frozen=True, slots=True)
class _Kind:
    """How rows of one operator split into laws."""

    by: str
    parameters: tuple[Parameter, ...]
    predict: Predict
    work: Callable[[Rows], FloatArray]
    dims: tuple[str, ...]


KINDS: dict[str, _Kind] = {
    "gemm": _Kind("dtype", gemm.PARAMETERS, _gemm, _gemm_work, ("m", "n", "k")),
    "attention": _Kind(
        "dtype",
        attention.PARAMETERS,
        _attention,
        _attention_work,
        ("batch", "seq_q", "seq_kv", "num_heads", "num_kv_heads", "head_dim"),
    ),
    "collective": _Kind(
        "collective",
        protocols.RING_PARAMETERS,
        _collective,
        lambda rows: rows["message_bytes"],
        ("message_bytes", "num_ranks"),
    ),
    "quantize": _Kind(
        "what", quantize.PARAMETERS, _quantize, lambda rows: rows["m"] * rows["k"], ("m", "k")
    ),
    "conv": _Kind("dtype", conv.PARAMETERS, _conv, _conv_work, ("out_channels", "in_channels")),
    "pointwise": _Kind(
        "", pointwise.PARAMETERS, _pointwise, lambda rows: rows["bytes_moved"], ("bytes_moved",)
    ),
    "transfer": _Kind(
        "direction",
        transfer.PARAMETERS,
        _transfer,
        lambda rows: rows["bytes_moved"],
        ("bytes_moved",),
    ),
    "media": _Kind("codec", media.PARAMETERS, _media, lambda rows: rows["pixels"], ("pixels",)),
}


DERIVED = ("broadcast", "p2p")
"""Collectives that the cost laws derive from others: their rows fit nothing."""

MEASURED_LAW = {op: law for op, law in collective.LAW_OF.items() if op not in DERIVED}


def law_names(kind: str, rows: Rows) -> NDArray[np.str_]:
    """Law of each row; an unknown or derived collective has none (empty name)."""
    by = KINDS[kind].by
    if not by:
        return np.full(len(rows), kind)
    groups = rows.text(by)
    if kind == "collective":
        return np.array([MEASURED_LAW.get(str(group), "") for group in groups])
    return np.array([f"{kind}/{group}" for group in groups])


def _parameters(kind: str, name: str) -> tuple[Parameter, ...]:
    if kind == "gemm":
        return gemm.parameters_of(name.split("/")[1])
    return protocols.parameters_of(name) if kind == "collective" else KINDS[kind].parameters


def fit_laws(
    records: Records, device: Device, only: tuple[str, ...] = (), host: Overrides = USUAL_HOST
) -> list[FitLaw]:
    """The laws that `records` can fit, in a fixed order.

    Args:
        records: good rows.
        device: that they were measured on.
        only: law names or kinds to keep; empty keeps all.
        host: where its host differs from the usual one: peer access, sockets.
    """
    laws: list[FitLaw] = []
    for kind, rows in sorted(records.ops.items()):
        if kind not in KINDS:
            continue
        spec = KINDS[kind]
        names = law_names(kind, rows)
        for name in sorted(set(names) - {""}):
            if only and name not in only and kind not in only:
                continue
            part = rows.take(names == name)
            if kind == "collective":
                part = with_links(part, device, host)
            parameters = _parameters(kind, name)
            key = tuple(c for c in (spec.by, *spec.dims, "causal") if c in part.columns)
            work = spec.work(part)
            kernels = kernels_of(part, work)
            laws.append(FitLaw(name, parameters, part, kernels, spec.predict, work, spec.dims, key))
    return laws


NCCL_VENDORS = ("NVIDIA", "AMD")
"""Makers whose devices talk through NCCL or RCCL."""


def with_known(law: FitLaw, device: Device, host: Overrides = USUAL_HOST) -> FitLaw:
    """`law` without the search for what the library of `device` states.

    Over NVLink that is where NCCL changes the protocol of its rings: few rows lie beside the
    change, so a fit that may move it puts unseen ones on its wrong side.  What HCCL does with its
    buffer is none of NCCL's, nor of RCCL, which is made from it.
    """
    peers = device.link.p2p if host.p2p is None else host.p2p
    over_nvlink = peers and device.link.kind.startswith("NVLink")
    known: dict[str, float] = {}
    if law.name == "collective/ring" and over_nvlink:
        known = {"switch_s": protocols.SWITCH_S}
    if law.name == "collective/all_to_all" and device.vendor in NCCL_VENDORS:
        known = dict.fromkeys(protocols.HCCL_ONLY, 1.0)
    if not known:
        return law
    return replace(
        law,
        parameters=tuple(
            replace(p, default=known[p.name], grid=(known[p.name],)) if p.name in known else p
            for p in law.parameters
        ),
    )
