"""Extract the command-line flags of ``vllm serve --omni`` from a vLLM-Omni wheel.

Run as ``python -m perfmodel.engines.extract_flags WHEEL > flags.json``.  Only the source is read:
the parser itself needs the vllm package and a GPU build of torch.
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

SERVE_FILES = (
    "vllm_omni/entrypoints/cli/serve.py",
    "vllm_omni/engine/arg_utils.py",
)
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
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield node


def flags_of(source: str) -> dict[str, dict[str, Any]]:
    """All flags that a Python source adds to a parser, with type, choices and default.

    Further spellings of a flag get an entry ``{"same_as": first spelling}``; a
    ``BooleanOptionalAction`` also adds its ``--no-`` form.
    """
    found: dict[str, dict[str, Any]] = {}
    for call in _add_argument_calls(source):
        names = [
            str(_literal(argument))
            for argument in call.args
            if isinstance(argument, ast.Constant) and str(argument.value).startswith("-")
        ]
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
    """Flags of a wheel, with its version and checksum."""
    flags: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in SERVE_FILES:
            source = archive.read(name).decode()
            flags = {**flags_of(source), **flags}
            refused = refused or refused_of(source)
    version = wheel.name.split("-")[1]
    return {
        "source": f"https://pypi.org/project/vllm-omni/{version}/ {', '.join(SERVE_FILES)}",
        "version": version,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "refused_with_omni": refused,
        "flags": dict(sorted(flags.items())),
    }


def main(argv: list[str]) -> int:
    """Print the flags of the wheel named on the command line as JSON."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m perfmodel.engines.extract_flags WHEEL\n")
        return 2
    sys.stdout.write(json.dumps(extract(Path(argv[0])), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
