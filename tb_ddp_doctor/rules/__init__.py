"""The rules, one file each, named for the fault: a rule is found by being here.

What shows rules imports them from here, and nothing of `support`.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from tb_ddp_doctor.rules.support.base import Rule
from tb_ddp_doctor.rules.support.contract import catalogue
from tb_ddp_doctor.rules.support.page import page

__all__ = ["CATALOGUE", "Rule", "is_name", "page"]


def _rules() -> Iterator[Rule]:
    """The rules of all files of this folder, with their thresholds as shipped."""
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(importlib.import_module(file.name)).values():
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == file.name:
                yield value()


#: Every rule by id, in the order of ids.
CATALOGUE: dict[str, Rule] = catalogue(_rules())


def is_name(name: str) -> bool:
    """Whether findings may be named so: by a rule, or by an id that one of its findings can have."""
    rule, _, number = name.partition(":")
    return rule in CATALOGUE and (name == rule or number.isdecimal())
