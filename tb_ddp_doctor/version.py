"""The version of this package; its only place."""

from pathlib import Path

__version__ = "0.1.0"
#: The folder of the package.
PACKAGE = Path(__file__).parent
