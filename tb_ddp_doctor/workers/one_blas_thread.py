"""Imports numpy with OpenBLAS on one thread: to be imported first, in processes that are the doctor's own.

OpenBLAS starts a thread for each core as soon as it is loaded, and each of them spins for a tenth of a second of CPU
time before it sleeps. No product of matrices here is large enough for a second one. What the user has set stands, and
the environment is as before once numpy is there: what this process starts inherits nothing.
"""

import os

_SETTINGS = ("OPENBLAS_NUM_THREADS", "OPENBLAS_DEFAULT_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")

if not any(setting in os.environ for setting in _SETTINGS):
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import numpy as np  # noqa: F401 - for what it loads
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
