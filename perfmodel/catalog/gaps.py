"""What a device file leaves open, and what that costs the predictions."""

from __future__ import annotations

from perfmodel.errors import Problem
from perfmodel.spec.hardware import Device

FP32_RATES = ("fp32", "tf32")
"""Peaks that serve the parts of a model that run in fp32 under any dtype."""


def gaps(device: Device) -> list[Problem]:
    """A warning for each figure that is not stated and that a prediction would use."""
    compute, memory = device.compute, device.memory
    exponentials = (
        "" if device.exp_per_s else " and exponentials go by the family's ratio to the matrix peak"
    )
    said = (
        (
            "compute.multiprocessors",
            compute.multiprocessors,
            "tiles are not rounded to waves, so small kernels look faster than they are"
            + exponentials,
        ),
        (
            "compute.boost_hz",
            compute.boost_hz,
            "the clock is taken as 1.5 GHz, which scales the exponentials and strided copies that "
            "are counted by multiprocessors",
        ),
        (
            "compute.tdp_w",
            compute.tdp_w,
            "the power limit of lent laws is that of the device that lends them",
        ),
        ("memory.l2_bytes", memory.l2_bytes, "nothing is read from a cache"),
        (
            "vector_flop_per_s",
            device.vector_flop_per_s or _stated(device),
            "models with parts in fp32 are refused (exit code 4)",
        ),
        ("network", device.network, "questions over several hosts are refused (exit code 4)"),
    )
    return [
        Problem(
            "hardware-gap",
            f"{device.id}: {name} is not stated: {cost}",
            field=name,
            severity="warning",
        )
        for name, figure, cost in said
        if figure is None
    ]


def _stated(device: Device) -> object | None:
    """A peak that stands in for the vector rate, where there is one."""
    found = (device.peak_flop_per_s.get(name) for name in FP32_RATES)
    return next((figure for figure in found if figure and figure.value), None)
