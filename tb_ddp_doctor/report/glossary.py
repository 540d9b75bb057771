"""What terms mean: `glossary.json`, which `python tests/generate.py` makes from docs/glossary.md."""

from __future__ import annotations

from pathlib import Path

import msgspec

GLOSSARY = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, str])
