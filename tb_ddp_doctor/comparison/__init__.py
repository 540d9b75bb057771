"""Two runs side by side: each owner, finding, collective, kernel and operator, and whether changes are significant.

Runs may differ in length, world size and file names: all amounts are means over ranks and steps, and kernels and
operators are matched by name.
"""
