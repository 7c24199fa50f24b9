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
    load_terms,
    model_ids,
    nearest,
    own_terms,
    read_device,
    read_model,
    read_yaml,
    terms_chain,
)
from perfmodel.catalog.gpus import Overrides, build_system, parse_gpus, resolve
from perfmodel.catalog.hosts import host_of, host_terms
from perfmodel.catalog.lazy import load_system

__all__ = [
    "Overrides",
    "all_models",
    "build_system",
    "data_files",
    "data_roots",
    "entries",
    "find",
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
    "terms_chain",
]
