"""Which laws can be fitted: their rows, their parameters, and how rows are predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.records import Records, Rows
from perfmodel.cost import attention, collective, conv, gemm, media, pointwise, quantize, transfer
from perfmodel.cost.fits import Parameter
from perfmodel.cost.machine import Rates
from perfmodel.cost.versions import LAW_VERSIONS

FloatArray = NDArray[np.float64]
Predict = Callable[[Mapping[str, float], Rates, Rows, FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class FitLaw:
    """One law with the rows that fit it.

    Attributes:
        name: ``gemm/bf16``...
        parameters: what is searched.
        rows: good rows of the records.
        predict: seconds of rows from parameter values and kernel rates.
        work: what the size of a row is (FLOP or bytes).
        dims: columns whose range is kept with the fit.
        key: columns whose hash decides the half a row falls in.
    """

    name: str
    parameters: tuple[Parameter, ...]
    rows: Rows
    predict: Predict
    work: FloatArray
    dims: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``gemm``, ``attention``..."""
        return self.name.split("/")[0]

    @property
    def version(self) -> int:
        """Version of the formula."""
        return LAW_VERSIONS[self.kind]


def _gemm(values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray) -> FloatArray:
    dtype = str(rows.text("dtype")[0])
    return gemm.gemm_time_s(
        values,
        rates,
        dtype,
        rows["m"],
        rows["n"],
        rows["k"],
        rows["batch"],
        kernel_rate=rate,
        resident=True,
    )


def _attention(
    values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray
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
        kernel_rate=rate,
    )


def _collective(
    values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray
) -> FloatArray:
    return collective.collective_time_s(
        values,
        str(rows.text("collective")[0]),
        rows["message_bytes"],
        rows["num_ranks"],
        rates.link_bytes_per_s * rate,
        in_switch=rates.in_switch_reduce,
    )


def _quantize(
    values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray
) -> FloatArray:
    what = str(rows.text("what")[0])
    return quantize.quantize_kernel_s(values, rates, what, rows["m"], rows["k"], resident=True)


def _conv(values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray) -> FloatArray:
    inner = rows["in_channels"] * rows["kt"] * rows["kh"] * rows["kw"]
    dtype = str(rows.text("dtype")[0])
    return gemm.gemm_time_s(
        values, rates, dtype, _voxels(rows), rows["out_channels"], inner, kernel_rate=rate
    )


def _voxels(rows: Rows) -> FloatArray:
    return rows["batch"] * rows["out_t"] * rows["out_h"] * rows["out_w"]


def _pointwise(
    values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray
) -> FloatArray:
    copies = np.char.find(np.char.lower(rows.text("kernel")), "copy") >= 0
    frac = np.where(copies, values["copy_frac"], values["memory_frac"])
    return values["kernel_floor_s"] + rows["bytes_moved"] / (rates.memory_bytes_per_s * frac * rate)


def _transfer(
    values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray
) -> FloatArray:
    bandwidth = rates.host_link_bytes_per_s * values["link_frac"]
    return values["latency_s"] + rows["bytes_moved"] / (bandwidth * rate)


def _media(values: Mapping[str, float], rates: Rates, rows: Rows, rate: FloatArray) -> FloatArray:
    return values["start_s"] + rows["pixels"] / (values["pixels_per_s"] * rate)


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
        collective.PARAMETERS,
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


def fit_laws(records: Records, only: tuple[str, ...] = ()) -> list[FitLaw]:
    """The laws that `records` can fit, in a fixed order.

    Args:
        records: good rows.
        only: law names or kinds to keep; empty keeps all.
    """
    laws: list[FitLaw] = []
    for kind, rows in sorted(records.ops.items()):
        if kind not in KINDS:
            continue
        spec = KINDS[kind]
        groups = sorted(set(rows.text(spec.by))) if spec.by else [""]
        for group in groups:
            name = f"{kind}/{group}" if group else kind
            if only and name not in only and kind not in only:
                continue
            part = rows.take(rows.text(spec.by) == group) if spec.by else rows
            parameters = gemm.parameters_of(group) if kind == "gemm" else spec.parameters
            key = tuple(c for c in (spec.by, *spec.dims, "causal") if c in part.columns)
            laws.append(
                FitLaw(name, parameters, part, spec.predict, spec.work(part), spec.dims, key)
            )
    return laws
