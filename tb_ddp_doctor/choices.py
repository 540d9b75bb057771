"""What options take, and what is said of a name or a number that is none of those."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Iterable
from typing import NoReturn

#: So many names are listed beside the one that was probably meant.
_FEW = 8


def refusal(what: str, given: object, names: Iterable[str]) -> str:
    """A sentence: what is taken, what was given, and the name that was probably meant."""
    known = list(names)
    return f"{what} is one of {', '.join(known)}, not {given!r}.{did_you_mean(given, known)}"


def no_name(kind: str, given: object, names: Iterable[str]) -> str:
    """Sentences: there is nothing of that name, the name that was probably meant, and what there is.

    Of many names the list is left out where one of them is near.
    """
    known = list(names)
    near = did_you_mean(given, known)
    # A list of thirty names hides the one that was meant.
    listed = f" There are: {', '.join(known)}." if not near or len(known) <= _FEW else ""
    return f"There is no {kind} {given!r}.{near}{listed}"


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """A sentence to put behind another one, with the name nearest to what was given; "" where none is near."""
    # The dashes that all options begin with make none of them near.
    by_letters = {name.casefold().lstrip("-"): name for name in names}
    import difflib  # for what is misspelled alone

    near = difflib.get_close_matches(str(given).casefold().lstrip("-"), by_letters, n=1, cutoff=0.6)
    return f" Did you mean {by_letters[near[0]]!r}?" if near else ""


def whole(what: str, least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Reads an option that takes a whole number from `least` to `most`; `what` names it in a sentence."""
    limits = f"from {least:,} to {most:,}" if most is not None else f"{least:,} or more"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"takes {what}, {limits}, not {text!r}")
        return number

    return read


def number(what: str, *, least: float = 0.0, above: bool = False, unit: str = "") -> Callable[[str], float]:
    """Reads an option that takes a finite number from `least` on, or only above it, with or without its unit."""
    limits = f"above {least:g}" if above else f"{least:g} or more"

    def read(text: str) -> float:
        try:
            value = float(text.strip().removesuffix(unit).strip())
        except ValueError:
            value = math.nan
        if not least <= value < math.inf or (above and value == least):
            raise argparse.ArgumentTypeError(f"takes {what}, {limits}, not {text!r}")
        return value

    return read


def flag(options: argparse._ActionsContainer, name: str, meaning: str) -> None:
    """Add an option that is given or not."""
    options.add_argument(name, action="store_true", help=meaning)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest option, command or choice."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse; ends the process with 2 for what is not known."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._of_command(given).refuse(unknown)
        return given

    def refuse(self, unknown: list[str]) -> NoReturn:
        """End the process over arguments that are not known."""
        near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
        if not unknown[0].startswith("-") and os.path.exists(unknown[0]):
            near = " One path is taken: name the directory that holds both, or compare two runs (ddp-doctor compare)."
        self.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")

    def _of_command(self, given: argparse.Namespace) -> Parser:
        """The parser of the command that was given."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                command: Parser = action.choices.get(getattr(given, action.dest, ""), self)
                return command
        return self

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(action.choices)
            near = did_you_mean(value, known)
            if isinstance(action, argparse._SubParsersAction) and os.path.exists(str(value)):
                near = f" For what is in a directory or a file: {self.prog} {known[0]} {shlex.quote(str(value))}"
            said = f"takes one of {', '.join(known)}, not {value!r}.{near}"
            raise argparse.ArgumentError(action, said)
