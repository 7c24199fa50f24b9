"""Microbenchmarks on the device at hand.  Only this package (and `verify/`) imports torch.

``device`` opens the accelerator, ``timing`` measures calls, ``kernels``, ``pointwise``, ``host``,
``transfer``, ``media`` and ``collectives`` build them, ``store`` keeps the records, ``runner``
drives a list of cases, ``live`` closes the loop on the machine at hand.  Nothing here is imported
until a benchmark runs.
"""
