"""A directory whose transformer is of no known family: traced, where the libraries are there.

Torch and diffusers are imported only here, and only for such a class.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import BadInput, install
from perfmodel.stages.imports.read import Config, refuse

if TYPE_CHECKING:
    from perfmodel.stages.imports.trace.denoiser import Denoiser

LIBRARY = "diffusers"
NEEDED = ("torch", LIBRARY)
NEAREST = 2
GUIDE = "see models/README.md"


def unknown_class(config: Config, known: Mapping[str, Any], why: str = "") -> BadInput:
    """The refusal of a class without a family, with the nearest that have one."""
    near = _nearest(config, known)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    what = f'class "{config.cls}" is of no known family{hint}{why}; a new family: {GUIDE}'
    return refuse(str(config.path), what, value=config.cls, suggestions=tuple(near))


def library_class(config: Config, known: Mapping[str, Any]) -> tuple[type, str]:
    """The class of a configuration, and the library with its version.

    Raises:
        BadInput: torch or diffusers are missing, or diffusers has no such class.
    """
    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        why = f"; with {' and '.join(missing)} installed it can be traced: {install('trace')}"
        raise unknown_class(config, known, why)
    try:
        with quiet():
            library = import_module(LIBRARY)
            cls = getattr(library, config.cls, None)
    except Exception as error:
        # A library that is installed but broken fails in its own ways.
        why = f"; {LIBRARY} cannot be imported to trace it ({type(error).__name__})"
        raise unknown_class(config, known, why) from None
    version = getattr(library, "__version__", "")
    if not isinstance(cls, type) or not issubclass(cls, library.ModelMixin):
        raise unknown_class(config, known, f"; {LIBRARY} {version} has no such class to trace")
    return cls, f"{LIBRARY} {version}"


def denoiser(config: Config, known: Mapping[str, Any]) -> Denoiser:
    """The traced transformer of a directory.

    Raises:
        BadInput: see `library_class` and `trace.denoiser.trace_denoiser`.
    """
    cls, library = library_class(config, known)
    try:
        with quiet():
            tracer = import_module("perfmodel.stages.imports.trace.denoiser")
            found: Denoiser = tracer.trace_denoiser(cls, library, config)
    except BadInput as error:
        near = _nearest(config, known)
        hint = f"; nearest families: {', '.join(near)}" if near else ""
        first = error.problems[0]
        raise BadInput(replace(first, message=first.message + hint)) from None
    return found


def vae(config: Config, known: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `VaeSpec` for a VAE class without a kind.

    Raises:
        BadInput: see `library_class` and `trace.parts.trace_vae`.
    """
    cls, _ = library_class(config, known)
    with quiet():
        parts = import_module("perfmodel.stages.imports.trace.parts")
        traced, fields = parts.trace_vae(cls, config)
    return {**fields, "kind": "traced", "traced": traced.model_dump(exclude_defaults=True)}


def encoder(entry: object, part: str, folder: Path) -> Any:
    """The traced text encoder of a directory (`TracedEncoder`), or None."""
    if not isinstance(entry, list) or not all(
        _is_installed(name) for name in (*NEEDED, "transformers")
    ):
        return None
    with quiet():
        parts = import_module("perfmodel.stages.imports.trace.parts")
        return parts.trace_encoder(str(entry[1]), part, folder)


def pipeline_class(index: Mapping[str, Any]) -> type | None:
    """The pipeline that a directory names, where the library has it."""
    with quiet():
        found = getattr(import_module(LIBRARY), str(index.get("_class_name")), None)
    return found if isinstance(found, type) else None


def _nearest(config: Config, known: Mapping[str, Any]) -> list[str]:
    return get_close_matches(config.cls, known, n=NEAREST, cutoff=0.3)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the libraries say to people who load weights."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
