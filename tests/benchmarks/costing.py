"""Cost 100,000 (shape x degrees) rows of one model on one device, and print the rate.

python tests/benchmarks/costing.py [rows]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.search.enumerate import candidates
from perfmodel.spec.workload import Workload

DEFAULT_ROWS = 100_000


def main(rows: int) -> None:
    """Draw sizes and layouts at random (fixed seed), cost them, print seconds and rows a second."""
    session = open_session(Workload(frames=189), catalog.parse_gpus("8xB300"))
    layouts = candidates(8)
    random = np.random.default_rng(0)
    picked = layouts.take(random.integers(0, len(layouts), rows))
    shape = session.job.family.shape_columns(
        session.model,
        session.job.shape,
        random.choice(np.array([640, 832, 960, 1280]), rows),
        random.choice(np.array([384, 480, 544, 720]), rows),
        1 + 4 * random.integers(1, 60, rows),
    )
    job = replace(session.job, shape=shape)
    started = time.perf_counter()
    latency_s = evaluate(job, picked).latency_s
    seconds = time.perf_counter() - started
    distinct = len(np.unique(latency_s))
    print(
        f"{rows:,} rows ({distinct:,} distinct latencies) in {seconds:.2f} s: "
        f"{rows / seconds:,.0f} rows/s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_ROWS)
