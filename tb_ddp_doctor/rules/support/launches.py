"""What the CPU launches when a stall is over: it says which code the stall belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tb_ddp_doctor import kernel_names

#: Fewer stalls are named one by one, and one kernel follows most of them only if it follows this share.
_FEWEST = 3
_MOST = 0.5


def followed(kernels: Sequence[str]) -> str:
    """Which kernel is launched after most stalls, as a sentence and a space; "" where no kernel is.

    `kernels` has for each stall the kernel whose launch follows it, "" for none. Such as "All 88 stalls are followed by
    the launch of linear_relu_square_kernel. ".
    """
    named = Counter(kernel_names.short(kernel) for kernel in kernels if kernel)
    if len(kernels) < _FEWEST or not named:
        return ""
    kernel, number = named.most_common(1)[0]
    if number < _MOST * len(kernels):
        return ""
    many = f"All {number}" if number == len(kernels) else f"{number} of {len(kernels)}"
    return f"{many} stalls are followed by the launch of {kernel}. "
