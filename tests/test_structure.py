"""Rooms import only from rooms below them; the cold path loads nothing heavy; no magic numbers."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "perfmodel"

ROOMS = (
    ("units", "errors", "version"),
    ("files",),
    ("spec",),
    ("topology_graph",),
    ("topology",),
    ("catalog",),
    ("ops",),
    ("shapes",),
    ("stages",),
    ("placement",),
    ("engines",),
    ("cost",),
    ("memory", "pipeline"),
    ("search",),
    ("report",),
    ("api",),
    ("validate",),
    ("calibrate",),
    ("plan",),
    ("verify",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
HEAVY = ("torch", "optuna", "scipy", "networkx", "matplotlib", "av")


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[str, int]]:
    """(module, line) of run-time imports of this package; TYPE_CHECKING blocks do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped |= {id(child) for child in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perfmodel"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                (name if node.module == "perfmodel" else node.module, node.lineno) for name in names
            ]
        elif isinstance(node, ast.Import):
            found += [(a.name, node.lineno) for a in node.names if a.name.startswith("perfmodel")]
    return found


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in LEVEL, f"{room} is no room; give it a level"
    for module, line in imports(path):
        parts = module.split(".")
        if len(parts) < 2 or parts[1] == "__version__":
            continue
        target = parts[1]
        assert target == room or LEVEL[target] < LEVEL[room], (
            f"{path.name}:{line} imports {module}: {room} lies below {target}"
        )


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_unit_literals_outside_units(path):
    if path.name == "units.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    conversions = [
        side
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Pow)
        for side in (node.left, node.right)
    ]
    bad = [
        f"{path.name}:{side.lineno}: {side.value!r}"
        for side in conversions
        if isinstance(side, ast.Constant) and side.value in (1e3, 1e6, 1e9, 1e12, 1024)
    ]
    assert not bad, bad


def test_only_measuring_rooms_import_torch():
    allowed = ("calibrate/measure", "verify", "stages/imports/trace/")
    for path in SOURCES:
        relative = path.relative_to(PACKAGE).as_posix()
        if relative.startswith(allowed):
            continue
        assert not re.search(
            r"^\s*(import|from) torch\b", path.read_text(encoding="utf-8"), re.M
        ), relative


def test_recommend_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from perfmodel.cli import main\n"
        "try:\n    main(['recommend', '--gpus', '4xB300', '--frames', '189'])\n"
        "except SystemExit as e:\n    assert e.code in (0, None), e.code\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "BEST" in done.stdout
