"""vLLM-Omni: what its releases do, allow and print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from perfmodel.engines.base import Behaviour, Commands, Context, Launch, Version
from perfmodel.engines.legality import Rule
from perfmodel.engines.vllm_omni.versions import resolve_version
from perfmodel.spec.hardware import Device
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.workload import Options


class VllmOmni:
    """The engine object (stateless; its parts load when they are asked for)."""

    name = "vllm-omni"
    sends_together: ClassVar[bool] = True

    def version(self, text: str | None = None, dated: str | None = None) -> Version:
        """Version from ``0.30.0``, ``2026-06-16`` or None (the pinned one)."""
        return resolve_version(text, dated)

    def behaviour(
        self, model: ModelSpec, device: Device, version: Version, options: Options
    ) -> Behaviour:
        """How `version` runs `model` on `device`, options resolved."""
        from perfmodel.engines.vllm_omni.behaviour import resolve_behaviour

        return resolve_behaviour(model, device, version, options)

    def rules(self) -> tuple[Rule, ...]:
        """Legality rules, in the order in which they are reported."""
        from perfmodel.engines.vllm_omni.rules import RULES

        return RULES

    def searched_axes(self, behaviour: Behaviour) -> tuple[str, ...]:
        """Keys of `ParallelConfig` that do something for this model."""
        axes = (
            ("cfg", behaviour.has_cfg),
            ("ulysses", behaviour.has_sp),
            ("ring", behaviour.has_sp and behaviour.has_ring),
            ("tp", behaviour.has_tp),
            ("pp", behaviour.has_pp),
            ("hsdp", behaviour.has_hsdp),
            ("vae_patch", behaviour.has_vae_patch),
        )
        return tuple(axis for axis, useful in axes if useful)

    def commands(self, ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
        """Serve, request and benchmark texts; `predicted_s` is the expected request time [s]."""
        from perfmodel.engines.vllm_omni.commands import render_commands

        return render_commands(ctx, config, predicted_s)

    def read_launch(self, argv: Sequence[str]) -> Launch:
        """Read ``vllm serve ...`` as typed.

        Raises:
            BadInput: unknown flags or values, each with the nearest known one.
        """
        from perfmodel.engines.vllm_omni.launch import read_launch

        return read_launch(argv)


ENGINE = VllmOmni()
