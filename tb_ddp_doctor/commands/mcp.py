"""Serve agents: read-only tools over the Model Context Protocol."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from rich.console import Console

from tb_ddp_doctor.commands.output import complain
from tb_ddp_doctor.commands.runs import cache_of
from tb_ddp_doctor.findings import Workload


def run(options: argparse.Namespace, errors: Console) -> int:
    """Serve until the client goes, or Ctrl-C. Raises ValueError for directories that are none."""
    if find_spec("mcp") is None:
        complain(errors, "the package mcp is not installed: pip install 'tb-ddp-doctor[mcp]'.")
        return 2
    from tb_ddp_doctor.mcp_tools.roots import Roots
    from tb_ddp_doctor.mcp_tools.runs import RunsOfRoots
    from tb_ddp_doctor.mcp_tools.server import serve_http, serve_stdio, server
    from tb_ddp_doctor.mcp_tools.toolbox import Toolbox

    workload = Workload(gpu_hour=options.gpu_hour)
    runs = RunsOfRoots(Roots(options.logdirs), cache_of(options), workload, options.currency or "")
    toolbox = Toolbox(runs, options.tensorboard)
    try:
        if options.http is None:
            serve_stdio(server(toolbox))
        else:
            serve_http(server(toolbox), options.http, lambda address: complain(errors, f"serving {address}"))
    finally:
        toolbox.close()
    return 0
