"""Extract the command-line flags of an engine from its published wheel.

Run as ``python -m perfmodel.engines.extract_flags WHEEL > flags.json`` for vllm-omni, xfuser (xDiT)
or sglang.  Only the source is read: the parsers themselves need a GPU build of torch.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SGLANG = "sglang/multimodal_gen/"
PACKAGES: dict[str, tuple[str, ...]] = {
    "vllm_omni": (
        "vllm_omni/entrypoints/cli/serve.py",
        "vllm_omni/engine/arg_utils.py",
    ),
    "xfuser": ("xfuser/config/args.py",),
    "sglang": (
        f"{_SGLANG}runtime/server_args/server_args.py",
        f"{_SGLANG}runtime/entrypoints/cli/generate.py",
        f"{_SGLANG}configs/sample/sampling_params.py",
        f"{_SGLANG}configs/pipeline_configs/base.py",
        f"{_SGLANG}configs/models/vaes/base.py",
        f"{_SGLANG}benchmarks/bench_serving.py",
    ),
}
"""Files that add flags, by the name at the start of the wheel's file name."""

_PREFIXES = {"prefix": "vae-config"}
"""Values of names inside an f-string flag (sglang nests the flags of its VAE)."""
_KEPT = ("type", "choices", "default", "action", "nargs")


def _literal(node: ast.expr) -> Any:
    """The value of a literal, or the source text of any other expression."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
    return list(value) if isinstance(value, (tuple, set)) else value


def _add_argument_calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and "add_argument" in (
            getattr(node.func, "attr", ""),
            getattr(node.func, "id", ""),
        ):
            yield node


def _flag_text(node: ast.expr) -> str:
    """The text of a string or f-string argument; "" for anything else."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            parts.append(_PREFIXES.get(ast.unparse(part.value), ""))
    return "".join(parts)


def flags_of(source: str) -> dict[str, dict[str, Any]]:
    """All flags that a Python source adds to a parser, with type, choices and default.

    Further spellings of a flag get an entry ``{"same_as": first spelling}``; a
    ``BooleanOptionalAction`` also adds its ``--no-`` form.
    """
    found: dict[str, dict[str, Any]] = {}
    for call in _add_argument_calls(source):
        names = [text for argument in call.args if (text := _flag_text(argument)).startswith("-")]
        if not names:
            continue
        facts = {word.arg: _literal(word.value) for word in call.keywords if word.arg in _KEPT}
        first = next((name for name in names if name.startswith("--")), names[0])
        found[str(first)] = facts
        others = [name for name in names if name != first]
        if str(facts.get("action", "")).endswith("BooleanOptionalAction"):
            others.append(re.sub(r"^--", "--no-", first))
        found.update({name: {"same_as": first} for name in others})
    return found


def refused_of(source: str) -> list[str]:
    """Flags that the source lists as refused under ``--omni``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == (
            "prohibited_with_omni"
        ):
            table = _literal(node.value) if node.value is not None else {}
            return sorted(table.values()) if isinstance(table, dict) else []
    return []


def extract(wheel: Path) -> dict[str, Any]:
    """Flags of a wheel, with its version and checksum.

    Raises:
        KeyError: the wheel is none of `PACKAGES`.
    """
    package, version = wheel.name.split("-")[:2]
    files = PACKAGES[package]
    flags: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in files:
            source = archive.read(name).decode()
            flags = {**flags_of(source), **flags}
            refused = refused or refused_of(source)
    found: dict[str, Any] = {
        "source": f"https://pypi.org/project/{package.replace('_', '-')}/{version}/ "
        + ", ".join(files),
        "version": version,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    if package == "vllm_omni":
        found["refused_with_omni"] = refused
    return {**found, "flags": dict(sorted(flags.items()))}


def main(argv: list[str]) -> int:
    """Print the flags of the wheel named on the command line as JSON."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m perfmodel.engines.extract_flags WHEEL\n")
        return 2
    sys.stdout.write(json.dumps(extract(Path(argv[0])), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
