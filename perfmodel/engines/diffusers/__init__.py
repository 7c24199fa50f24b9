"""diffusers: pipelines in a Python process, one device, or context parallelism by torchrun."""

from __future__ import annotations

from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.diffusers.commands import read_launch, render
from perfmodel.engines.diffusers.facts import FACTS

ENGINE = DescribedEngine(facts=FACTS, starter=render, reader=read_launch)
