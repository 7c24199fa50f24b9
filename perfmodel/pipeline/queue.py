"""Requests that wait: each server takes one at a time, in the order in which they came."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.spec.parallel import Layouts


def wave(
    in_flight: int, servers: int | NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and longest stay of requests that are sent at once, in times of one request alone.

    Formula: of ``N`` requests on ``R`` servers, ``N mod R`` servers get ``w = N // R + 1`` and the
        others ``N // R``; the j-th of a server is done after ``j`` services, so that
        ``mean = sum over servers of w (w + 1) / 2 / N`` and ``longest = ceil(N / R)``.
    Source: a first-come queue of a single server with one service time and all arrivals at 0.
    """
    number = np.asarray(servers, np.int64)
    each, longer = np.divmod(in_flight, number)
    sums = (number - longer) * each * (each + 1) / 2 + longer * (each + 1) * (each + 2) / 2
    return sums / in_flight, np.ceil(in_flight / number)


def files_before(requests: int, together: int) -> tuple[float, float]:
    """Files that one process encodes before a request's own: of the mean request, of the last.

    Formula: rounds of ``k = together`` requests end together, the last round may be smaller; the
        j-th of a round waits for ``j - 1`` files.
    """
    rounds, rest = divmod(requests, together)
    waits = rounds * together * (together - 1) / 2 + rest * (rest - 1) / 2
    return waits / requests, float((rest or together) - 1)


def copies(in_flight: int, num_gpus: int, layouts: Layouts) -> NDArray[np.int64]:
    """Copies of each configuration that serve `in_flight` requests: as many as fit and have work.

    A configuration takes as many requests at once as it has data-parallel replicas.
    """
    fit = np.maximum(num_gpus // layouts.world_size, 1)
    return np.asarray(np.minimum(fit, -(-in_flight // layouts.dp)))


def copies_of(objective: str, in_flight: int, num_gpus: int, layouts: Layouts) -> NDArray[np.int64]:
    """Copies of each configuration that an objective runs.

    Throughput fills the machine, latency serves the requests in flight; a cost or a memory is that
    of one.
    """
    if objective == "latency":
        return copies(in_flight, num_gpus, layouts)
    fit = np.maximum(num_gpus // layouts.world_size, 1)
    return np.asarray(fit if objective == "throughput" else np.ones_like(fit))


def of_a_server(in_flight: int, num_gpus: int, layouts: Layouts) -> NDArray[np.int64]:
    """Most of the requests in flight that one server of a configuration gets.

    Formula: ``ceil(N / servers)``; every data-parallel replica of a copy is a server.
    """
    servers = copies(in_flight, num_gpus, layouts) * layouts.dp
    return np.asarray(-(-in_flight // servers))
