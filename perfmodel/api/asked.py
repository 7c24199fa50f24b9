"""What a library call may be given, as the types that everything else takes."""

from __future__ import annotations

from perfmodel import catalog
from perfmodel.errors import BadInput, Problem
from perfmodel.report.answer import ParallelInfo
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.workload import Options, Workload


def as_system(given: object) -> System:
    """A machine, or the text that ``--gpus`` takes.

    Raises:
        BadInput: unknown names, impossible counts, or another type.
    """
    if isinstance(given, System):
        return given
    if isinstance(given, str):
        return catalog.parse_gpus(given)
    raise _wrong("system", given, 'a text such as "4xB300" or perfmodel.system("4xB300")')


def as_workload(given: object) -> Workload:
    """A request.

    Raises:
        BadInput: another type.
    """
    if isinstance(given, Workload):
        return given
    raise _wrong("workload", given, 'perfmodel.Workload(model="cosmos3-nano")')


def as_options(given: object) -> Options:
    """Options; None takes the defaults.

    Raises:
        BadInput: another type.
    """
    if given is None:
        return Options()
    if isinstance(given, Options):
        return given
    raise _wrong("options", given, 'perfmodel.Options(offload="auto")')


def as_parallel(given: object) -> str | ParallelConfig:
    """Degrees as text or record; those of an answer (`ParallelInfo`) become text.

    An answer keeps VAE tiling with its options, so its degrees leave that to `Options.vae_tiling`.

    Raises:
        BadInput: another type.
    """
    if given is None:
        return "single"
    if isinstance(given, (str, ParallelConfig)):
        return given
    if isinstance(given, ParallelInfo):
        return ",".join(f"{key}={value}" for key, value in given.model_dump().items())
    raise _wrong("parallel", given, '"cfg=2,ulysses=2", an id or a ParallelConfig')


def _wrong(name: str, given: object, wanted: str) -> BadInput:
    kind = type(given).__name__
    message = f"{name} is of type {kind}; pass {wanted}"
    return BadInput(Problem("argument", message, field=name, value=kind))
