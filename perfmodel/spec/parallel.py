"""A parallel configuration: its keys, its id, and many of them as columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import BadInput, Problem
from perfmodel.spec.workload import WEIGHT_ONLY

IntColumn = NDArray[np.int64]

ARGUMENTS = {
    "cfg_parallel_size": "cfg",
    "ulysses_degree": "ulysses",
    "ring_degree": "ring",
    "allgather_degree": "allgather",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "hsdp_shard_size": "hsdp",
    "hsdp_replicate_size": "hsdp_replicate",
    "vae_patch_parallel_size": "vae_patch",
    "text_encoder_tp_size": "text_encoder_tp",
}
"""Names of vLLM-Omni's arguments, which answers and run records use, to keys."""

KEY_ALIASES = {
    **ARGUMENTS,
    "usp": "ulysses",
    "shard": "hsdp",
    "hsdp_shard": "hsdp",
    "vaepp": "vae_patch",
    "allgather_kv": "allgather",
    "pipefusion_degree": "pp",
    "pipefusion": "pp",
}


MOST_DEGREE = 100_000
"""Of one axis; the number of ranks may not be larger either."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Degrees of one configuration; 1 means off (``hsdp`` 1 = no weight sharding).

    World size = cfg x ulysses x ring x allgather x tp x pp x dp, or the HSDP mesh when that is
    all there is.  HSDP and VAE patch reuse these ranks, so they do not multiply it.
    """

    cfg: int = 1
    ulysses: int = 1
    ring: int = 1
    allgather: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    hsdp: int = 1
    hsdp_replicate: int = 1
    vae_patch: int = 1
    text_encoder_tp: int = 1
    vae_tiling: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks the configuration runs on."""
        mesh = self.cfg * self.ulysses * self.ring * self.allgather * self.tp * self.pp * self.dp
        return max(mesh, self.hsdp * self.hsdp_replicate)

    @property
    def arguments(self) -> dict[str, int]:
        """Degrees by the names of the engine's arguments."""
        return {name: getattr(self, key) for name, key in ARGUMENTS.items()}

    @property
    def config_id(self) -> str:
        """``cfg2_usp2_ring2_tp2_pp2_dp2_hsdp4x2_vaepp4_tiling``; ``single`` when all are off."""
        return config_id(self)


KEYS = tuple(f.name for f in fields(ParallelConfig) if f.name != "vae_tiling")

DTYPE_SUFFIXES = ("fp8", "fp8_block", "int8", "nvfp4", *WEIGHT_ONLY)
SUFFIXES = ("offload-", "cache-", "attn-", "sparse-")
"""How option parts of an id begin."""
_ID_PART = re.compile(r"(?P<name>cfg|usp|ring|agkv|tp|pp|dp|vaepp|tetp)(?P<degree>\d+)$")
# The underscore of a dtype's name separates nothing.
_ID_SEPARATOR = re.compile(r"(?<!fp8)_|(?<=fp8)_(?!block(?:_|$))")
_ID_HSDP = re.compile(r"hsdp(?P<shard>\d+)(?:x(?P<replicate>\d+))?$")
_ID_KEYS = {"usp": "ulysses", "agkv": "allgather", "vaepp": "vae_patch", "tetp": "text_encoder_tp"}


def config_id(config: ParallelConfig, suffixes: Iterable[str] = ()) -> str:
    """The id of `config`: fixed order, ones left out, then option suffixes such as ``fp8``."""
    parts = [
        f"{label}{degree}"
        for label, degree in (
            ("cfg", config.cfg),
            ("usp", config.ulysses),
            ("ring", config.ring),
            ("agkv", config.allgather),
            ("tp", config.tp),
            ("pp", config.pp),
            ("dp", config.dp),
        )
        if degree > 1
    ]
    if config.hsdp > 1:
        replicate = f"x{config.hsdp_replicate}" if config.hsdp_replicate > 1 else ""
        parts.append(f"hsdp{config.hsdp}{replicate}")
    if config.vae_patch > 1:
        parts.append(f"vaepp{config.vae_patch}")
    if config.text_encoder_tp > 1:
        parts.append(f"tetp{config.text_encoder_tp}")
    if config.vae_tiling and config.vae_patch == 1:
        parts.append("tiling")
    parts.extend(suffixes)
    return "_".join(parts) or "single"


def parse_parallel(text: str) -> tuple[ParallelConfig, tuple[str, ...]]:
    """Read ``cfg=2,ulysses=2`` or a config id.

    Returns:
        The configuration and the id's option suffixes (``fp8``, ``offload-layer``), if any.

    Raises:
        BadInput: unknown key, or a degree that is not a positive integer, or too many ranks; all
            problems at once.
    """
    text = text.strip()
    config, suffixes = (_parse_pairs(text), ()) if "=" in text else _parse_id(text)
    check_ranks(config)
    return config, suffixes


def degree_of(text: str) -> int | None:
    """A degree from 1 to `MOST_DEGREE`; None for any other text."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > len(str(MOST_DEGREE)):
        return None
    return int(digits) if 1 <= int(digits) <= MOST_DEGREE else None


def check_ranks(config: ParallelConfig) -> None:
    """Nothing for a configuration of at most `MOST_DEGREE` ranks.

    Raises:
        BadInput: it has more.
    """
    if config.world_size > MOST_DEGREE:
        message = (
            f"{config.config_id} in --parallel multiplies to {config.world_size:,} ranks; "
            f"legal: 1 to {MOST_DEGREE:,}; try smaller degrees, such as ulysses=2"
        )
        raise BadInput(
            Problem("degree", message, "--parallel", config.config_id, (f"1 to {MOST_DEGREE:,}",))
        )


def _parse_pairs(text: str) -> ParallelConfig:
    degrees: dict[str, int] = {}
    problems: list[Problem] = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        raw_key, _, raw_value = pair.partition("=")
        key = raw_key.strip().lower().replace("-", "_")
        key = KEY_ALIASES.get(key, key)
        if key not in KEYS:
            problems.append(_unknown_key(raw_key.strip()))
        elif (degree := degree_of(raw_value)) is None:
            problems.append(_bad_degree(key, raw_value.strip()))
        elif degrees.setdefault(key, degree) != degree:
            problems.append(_bad_degree(key, f"{degrees[key]} and {raw_value.strip()}"))
    if problems:
        raise BadInput(*problems)
    return replace(ParallelConfig(), **degrees)  # type: ignore[arg-type]


def _parse_id(text: str) -> tuple[ParallelConfig, tuple[str, ...]]:
    degrees: dict[str, int | bool] = {}
    bad: list[Problem] = []

    def put(key: str, digits: str) -> None:
        if (degree := degree_of(digits)) is None:
            bad.append(_bad_degree(key, digits))
        else:
            degrees[key] = degree

    suffixes: list[str] = []
    if text in ("", "single"):
        return ParallelConfig(), ()
    for part in _ID_SEPARATOR.split(text.lower()):
        if match := _ID_HSDP.match(part):
            put("hsdp", match["shard"])
            put("hsdp_replicate", match["replicate"] or "1")
        elif match := _ID_PART.match(part):
            put(_ID_KEYS.get(match["name"], match["name"]), match["degree"])
        elif part == "tiling":
            degrees["vae_tiling"] = True
        elif part in DTYPE_SUFFIXES or part.startswith(SUFFIXES):
            suffixes.append(part)
        else:
            raise BadInput(_unknown_key(part))
    if bad:
        raise BadInput(*bad)
    return ParallelConfig(**degrees), tuple(suffixes)  # type: ignore[arg-type]


def _unknown_key(key: str) -> Problem:
    near = get_close_matches(key.lower(), [*KEYS, *KEY_ALIASES], n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ";"
    return Problem(
        "option",
        f'"{key}" in --parallel is unknown{hint} keys: {", ".join(KEYS)}',
        field="--parallel",
        value=key,
        legal_values=KEYS,
        suggestions=tuple(near),
    )


def _bad_degree(key: str, value: str) -> Problem:
    return Problem(
        "degree",
        f'{key}="{value}" in --parallel is not one whole number from 1 to {MOST_DEGREE:,}; '
        f"try {key}=2",
        field="--parallel",
        value=value,
        suggestions=(f"{key}=2",),
    )


@dataclass(frozen=True, slots=True)
class Layouts:
    """Many configurations as int64 columns of equal length (a row a configuration)."""

    cfg: IntColumn
    ulysses: IntColumn
    ring: IntColumn
    allgather: IntColumn
    tp: IntColumn
    pp: IntColumn
    dp: IntColumn
    hsdp: IntColumn
    hsdp_replicate: IntColumn
    vae_patch: IntColumn
    text_encoder_tp: IntColumn
    vae_tiling: IntColumn

    @classmethod
    def of(cls, configs: Iterable[ParallelConfig]) -> Layouts:
        """Columns from records, in order."""
        rows = list(configs)
        return cls(
            **{
                f.name: np.array([getattr(row, f.name) for row in rows], np.int64)
                for f in fields(cls)
            }
        )

    def __len__(self) -> int:
        """Number of configurations."""
        return len(self.cfg)

    def row(self, index: int) -> ParallelConfig:
        """One configuration as a record."""
        degrees = {key: int(getattr(self, key)[index]) for key in KEYS}
        return ParallelConfig(**degrees, vae_tiling=bool(self.vae_tiling[index]))

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Layouts:
        """The selected rows."""
        return Layouts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def sequence_parallel(self) -> IntColumn:
        """Ulysses x ring x allgather: the ranks that share the tokens."""
        return self.ulysses * self.ring * self.allgather

    @property
    def world_size(self) -> IntColumn:
        """Ranks of each configuration."""
        mesh = self.cfg * self.sequence_parallel * self.tp * self.pp * self.dp
        return np.asarray(np.maximum(mesh, self.hsdp * self.hsdp_replicate))
