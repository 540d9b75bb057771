"""Two runs side by side: what became of each owner, finding, collective, kernel and operator, and whether it tells.

Runs may differ in length, world size and file names: all amounts are means over ranks and steps, and kernels and
operators are matched by name.
"""
