"""Names that the package promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perfmodel as pm


def test_every_public_name_loads():
    for name in pm.__all__:
        assert getattr(pm, name) is not None
    assert set(pm.__all__) <= set(dir(pm))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pm.nothing


def test_system_means_what_gpus_means():
    box = pm.system("4xB300", host_ram_gib=1024)
    assert isinstance(box, pm.System)
    assert (box.num_gpus, box.host_ram_bytes) == (4, 1024 * 1024**3)
    with pytest.raises(pm.BadInput):
        pm.system("4xB301")


def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, perfmodel; heavy = {'numpy', 'pydantic', 'torch', 'yaml', 'typer', 'rich'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
