"""What a calibration's file is called: a module of its own, since the command's options name it, and import little."""

from __future__ import annotations

CALIBRATION_NAME = "calibration.json"
