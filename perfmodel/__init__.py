"""Analytic performance model and configuration recommender for diffusion inference.

The public names are loaded when they are first used, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.api.compare import compare
    from perfmodel.api.predict import predict, predict_all
    from perfmodel.api.recommend import recommend
    from perfmodel.errors import BadInput, MissingData, PerfmodelError, Problem, Refused
    from perfmodel.report.answer import Answer, CompareAnswer, PredictAnswer
    from perfmodel.spec.hardware import System
    from perfmodel.spec.parallel import ParallelConfig
    from perfmodel.spec.workload import Options, Workload

_HOMES = {
    "Answer": "perfmodel.report.answer",
    "BadInput": "perfmodel.errors",
    "CompareAnswer": "perfmodel.report.answer",
    "MissingData": "perfmodel.errors",
    "Options": "perfmodel.spec.workload",
    "ParallelConfig": "perfmodel.spec.parallel",
    "PerfmodelError": "perfmodel.errors",
    "PredictAnswer": "perfmodel.report.answer",
    "Problem": "perfmodel.errors",
    "Refused": "perfmodel.errors",
    "System": "perfmodel.spec.hardware",
    "Workload": "perfmodel.spec.workload",
    "compare": "perfmodel.api",
    "predict": "perfmodel.api",
    "predict_all": "perfmodel.api",
    "recommend": "perfmodel.api",
}

__all__ = [
    "Answer",
    "BadInput",
    "CompareAnswer",
    "MissingData",
    "Options",
    "ParallelConfig",
    "PerfmodelError",
    "PredictAnswer",
    "Problem",
    "Refused",
    "System",
    "Workload",
    "__version__",
    "compare",
    "predict",
    "predict_all",
    "recommend",
    "system",
]


def system(
    gpus: str,
    *,
    gpu_memory_gib: float | None = None,
    gpu_reserve_gib: float = 0.0,
    host_ram_gib: float | None = None,
    p2p: bool | None = None,
    sockets: int | None = None,
) -> System:
    """The machine that ``--gpus`` would mean.

    Args:
        gpus: ``4xB300``, ``2x8xH100``, ``h100:8`` or ``here``.
        gpu_memory_gib: memory of each device, for modified cards [GiB].
        gpu_reserve_gib: memory of each device that others hold [GiB].
        host_ram_gib: host RAM of a node [GiB]; unknown unless given.
        p2p: whether devices of a node copy to each other directly.
        sockets: CPUs that the PCIe devices of a node are spread over.

    Raises:
        BadInput: unknown names or impossible counts.
    """
    from perfmodel import catalog

    return catalog.parse_gpus(
        gpus,
        catalog.Overrides(
            gpu_memory_gib=gpu_memory_gib,
            gpu_reserve_gib=gpu_reserve_gib,
            host_ram_gib=host_ram_gib,
            p2p=p2p,
            sockets=sockets,
        ),
    )


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})
