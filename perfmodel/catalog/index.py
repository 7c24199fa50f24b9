"""The generated index of ids, aliases and tool-printed names, so that a start reads one file.

``python -m perfmodel.catalog.index`` rewrites ``hardware/index.json`` and ``models/index.json``;
a test compares them with the YAML files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from perfmodel.catalog.data import entry

FOLDERS = ("hardware", "models")
SCHEMA_VERSION = 1


def build_index(files: Iterable[Path]) -> dict[str, Any]:
    """Index of YAML files, by file name."""
    entries = []
    for path in sorted(files):
        data = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        entries.append(entry(data))
    return {"schema_version": SCHEMA_VERSION, "entries": entries}


def index_text(folder: Path) -> str:
    """The index file of `folder` as text: one entry a line, so that a diff reads well."""
    index = build_index(folder.glob("*.yaml"))
    lines = ",\n".join(f"  {json.dumps(item)}" for item in index["entries"])
    return f'{{"schema_version": {index["schema_version"]}, "entries": [\n{lines}\n]}}\n'


def main() -> None:
    """Rewrite the indices of the repository."""
    root = Path(__file__).resolve().parent.parent.parent
    for name in FOLDERS:
        folder = root / name
        if folder.is_dir():
            (folder / "index.json").write_text(index_text(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
