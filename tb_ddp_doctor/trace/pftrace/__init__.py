"""Torch's traces in Perfetto's format (`export_chrome_trace("x.pftrace")`): packets to columns."""
