"""Flow-matching schedules: which timesteps the steps of a request fall on.

UniPC with flow sigmas spaces ``n`` steps evenly in the unshifted noise level, from 0.999 down to
(but without) 0, then shifts: ``t = 1000 * shift*x / (1 + (shift - 1)*x)`` with
``x_i = 0.999 * (1 - i/n)``, i = 0 .. n-1.
Source: Wan2.2 ``wan/utils/fm_solvers_unipc.py`` (https://github.com/Wan-Video/Wan2.2) and
``UniPCMultistepScheduler`` of diffusers 0.42.1 (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import Ints

TRAIN_TIMESTEPS = 1e3
"""Training timesteps of the flow schedule; timesteps run from this down to 0."""
LARGEST_SIGMA = 0.999


def flow_timesteps(steps: int, shift: float) -> NDArray[np.float64]:
    """Timesteps (0 to 1000, falling) at which the model is evaluated.

    Args:
        steps: number of denoise steps.
        shift: flow shift; larger values spend more steps at high noise.
    """
    level = LARGEST_SIGMA * (1.0 - np.arange(steps) / steps)
    shifted: NDArray[np.float64] = TRAIN_TIMESTEPS * shift * level / (1.0 + (shift - 1.0) * level)
    return shifted


def steps_within(steps: int, shift: float, low: float, high: float) -> int:
    """Number of steps with ``low <= t <= high``."""
    timesteps = flow_timesteps(steps, shift)
    return int(np.count_nonzero((timesteps >= low) & (timesteps <= high)))


def expert_steps(steps: int, shift: float, boundary: float) -> tuple[int, int]:
    """Steps of the high-noise and of the low-noise expert, ``t >= boundary * 1000`` is high."""
    high = steps_within(steps, shift, boundary * TRAIN_TIMESTEPS, TRAIN_TIMESTEPS)
    return high, steps - high


def forwards(
    steps: Ints, branches: int, shift: float, interval: tuple[float, float] | None
) -> Ints:
    """Transformer forwards of a request: one a step and guidance branch that is active.

    Args:
        steps: denoise steps (int, or int64 array).
        branches: guidance branches; 1 means none.
        shift: flow shift of the schedule.
        interval: timesteps between which guidance is active; None: always.
    """
    if branches == 1 or interval is None:
        return steps * branches
    count = np.vectorize(lambda n: n + (branches - 1) * steps_within(int(n), shift, *interval))
    total = count(np.asarray(steps))
    return int(total) if np.ndim(steps) == 0 else np.asarray(total, np.int64)
