"""What the pipeline is asked: a model and a request, an engine's behaviour, a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfmodel.cost.machine import Machine
from perfmodel.engines.base import Behaviour
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages.base import Family


@dataclass(frozen=True)
class Job:
    """What is evaluated: one model and request under one engine's behaviour on one machine.

    Attributes:
        model, family: what runs.
        shape: the request; numbers are scalars or columns as long as the layouts.
        behaviour: engine behaviour with resolved options.
        machine: device, links, laws, terms.
        spread: relative 80 % half-widths by kind of time and provenance.
    """

    model: ModelSpec
    family: Family
    shape: Shape
    behaviour: Behaviour
    machine: Machine
    spread: Mapping[str, float] = field(default_factory=dict)

    @property
    def branches_together(self) -> bool:
        """Whether a rank runs its guidance branches of a step as one batch."""
        return self.model.branches_together and not self.behaviour.traits.branches_apart
