"""Device memory per rank, component and phase, for many configurations at once."""

from perfmodel.memory.advice import Miss, Remedy, nearest_miss, remedies
from perfmodel.memory.estimate import memory
from perfmodel.memory.table import FITS, NO, PARTS, STATUS, TIGHT, MemoryTable
from perfmodel.memory.terms import Terms, load_terms
from perfmodel.memory.vae import VaeMemory, vae_memory
from perfmodel.memory.weights import PHASES

__all__ = [
    "FITS",
    "NO",
    "PARTS",
    "PHASES",
    "STATUS",
    "TIGHT",
    "MemoryTable",
    "Miss",
    "Remedy",
    "Terms",
    "VaeMemory",
    "load_terms",
    "memory",
    "nearest_miss",
    "remedies",
    "vae_memory",
]
