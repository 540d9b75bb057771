"""Rows of which a change removes some of their device time."""

from __future__ import annotations

import numpy as np

from tb_ddp_doctor.trace.model import Ints


def shortened(need: Ints, whole: Ints, recorded_ns: Ints, gone_ns: Ints) -> Ints:
    """How long the device needs for each row of a schedule without what is removed of it, ns, shape (rows,).

    `recorded_ns` is how long it needed for each row, `need` what other parts of a change leave of that, and `whole` the
    same with what they take of single calls. A row of which they leave less gives back less, in proportion: its kernels
    are shorter by the same factor. `gone_ns` is written over: of jobs of thousands of ranks, a column has 16 MB.
    """
    if whole is not recorded_ns:
        rows = np.flatnonzero(whole != recorded_ns)
        share = np.minimum(whole[rows] / np.maximum(recorded_ns[rows], 1), 1)
        gone_ns[rows] = np.rint(gone_ns[rows] * share)
    np.minimum(gone_ns, need, out=gone_ns)
    np.maximum(gone_ns, 0, out=gone_ns)
    return np.subtract(need, gone_ns, out=gone_ns)
