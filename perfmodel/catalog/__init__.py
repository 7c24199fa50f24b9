"""The catalogue: devices, models, fits and described machines (the only reader of data folders)."""

from perfmodel.catalog.data import (
    all_models,
    data_files,
    data_roots,
    entries,
    find,
    hardware_ids,
    load_device,
    load_fit,
    load_model,
    model_ids,
    nearest,
    read_device,
    read_model,
    read_yaml,
    shadowing_file,
)
from perfmodel.catalog.gaps import gaps
from perfmodel.catalog.gpus import Overrides, build_system, parse_gpus, resolve
from perfmodel.catalog.lazy import load_system
from perfmodel.catalog.own import collisions, drafts
from perfmodel.catalog.terms import (
    host_of,
    host_terms,
    load_terms,
    own_terms,
    site_of,
    terms_chain,
)

__all__ = [
    "Overrides",
    "all_models",
    "build_system",
    "collisions",
    "data_files",
    "data_roots",
    "drafts",
    "entries",
    "find",
    "gaps",
    "hardware_ids",
    "host_of",
    "host_terms",
    "load_device",
    "load_fit",
    "load_model",
    "load_system",
    "load_terms",
    "model_ids",
    "nearest",
    "own_terms",
    "parse_gpus",
    "read_device",
    "read_model",
    "read_yaml",
    "resolve",
    "shadowing_file",
    "site_of",
    "terms_chain",
]
