"""Records of a matrix-product law whose parameters are known."""

import csv

import numpy as np

from perfmodel.calibrate.explore import Options
from perfmodel.catalog import load_device
from perfmodel.cost import gemm
from perfmodel.cost.machine import Rates

DEVICE = load_device("h100-sxm")
RATES = Rates.of(DEVICE)
QUICK = Options(trials=12, storage=None)
TRUE = {p.name: p.default for p in gemm.PARAMETERS} | {
    "rate_frac": 0.7,
    "launch_s": 5e-6,
    "memory_frac": 0.6,
    "throttle_frac": 0.3,
    "host_floor_s": 1e-7,
}


def write_gemm(path, times, shapes, kernel="linear", name="gemm.csv"):
    with (path / name).open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["op", "dtype", "kernel", "m", "n", "k", "latency_us"])
        for (m, n, k), time in zip(shapes, times, strict=True):
            out.writerow(["gemm", "bf16", kernel, m, n, k, f"{time * 1e6:.8g}"])
    return [path]


def shapes(count=300, seed=3):
    rng = np.random.default_rng(seed)
    sizes = np.array([256, 512, 1024, 2048, 3072, 4096, 8192, 16_384])
    picked = {tuple(int(x) for x in rng.choice(sizes, 3)) for _ in range(count * 2)}
    return sorted(picked)[:count]


def true_times(picked, noise=0.0, rate=1.0):
    m, n, k = np.array(picked, float).T
    times = gemm.gemm_time_s(TRUE, RATES, "bf16", m, n, k, kernel_rate=rate, resident=True)
    return times * np.exp(noise * np.random.default_rng(5).normal(size=len(times)))
