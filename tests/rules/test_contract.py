"""What a rule declares wrongly is said in a sentence when it is imported."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from traces import job

from tb_ddp_doctor.facts import Facts, fact
from tb_ddp_doctor.facts.frame import Frame
from tb_ddp_doctor.rules import CATALOGUE
from tb_ddp_doctor.rules.support.asked_facts import FACTS, ContractError, by_type
from tb_ddp_doctor.rules.support.base import Clear, Result, Rule, run, threshold
from tb_ddp_doctor.rules.support.contract import catalogue


class Copied(msgspec.Struct, frozen=True):
    """A fact that only a rule of this file asks for."""

    ranks: int


@fact
def _copied(facts: Facts) -> Copied:
    return Copied(len(facts.get(FACTS[Frame]).ranks))  # type: ignore[attr-defined]


class Copies(Rule):
    id = "copies"
    refines = "launch-bound"

    min_cost: float = threshold(0.01, "of the step", "It is a test.")

    def check(self, *, anything: Copied) -> Result:
        return Clear(f"{anything.ranks} ranks copy.")


def with_others(rule: Rule) -> dict[str, Rule]:
    """The catalogue, had the rule a file of its own."""
    return catalogue([*CATALOGUE.values(), rule])


def test_a_rule_asks_for_facts_by_their_type_and_for_those_of_its_own_file() -> None:
    assert with_others(Copies())["copies"].refined() == ("launch-bound",)
    assert run(Copies(), Facts(job("gpu [a]")))[0].reason == "1 ranks copy."


def test_a_fact_of_a_rule_is_no_fact_of_others() -> None:
    assert Copied not in FACTS


def test_a_type_that_no_fact_has_is_refused() -> None:
    class Misnamed(Copies):
        def check(self, *, copies: Fram) -> Result:
            return Clear("")

    with pytest.raises(ContractError, match=r" 'copies' of the type Fram, .* Did you mean 'Frame'\? Facts are "):
        with_others(Misnamed())


class Fram:
    """A type that no fact has."""


def test_a_type_that_is_not_imported_is_refused() -> None:
    class Unimported(Copies):
        def check(self, *, copies: CopyWorks) -> Result:  # type: ignore[name-defined]  # noqa: F821
            return Clear("")

    with pytest.raises(ContractError, match=r"^Rule copies names the type 'CopyWorks', which its file does not import"):
        with_others(Unimported())


def test_a_parameter_without_a_type_is_refused() -> None:
    class Untyped(Copies):
        def check(self, *, copies) -> Result:  # type: ignore[no-untyped-def]
            return Clear("")

    with pytest.raises(ContractError, match=r"^Rule copies asks for 'copies' without a type: "):
        with_others(Untyped())


@pytest.mark.parametrize("general", ["launch-bond", "copies"])
def test_a_rule_refines_another_one_that_there_is(general: str) -> None:
    class Refining(Copies):
        refines = general

    with pytest.raises(ContractError, match=r"Did you mean 'launch-bound'\?$|in a circle: copies\.$"):
        with_others(Refining())


def test_rules_that_refine_each_other_are_refused() -> None:
    class Other(Copies):
        id = "other"
        refines = ("copies",)

    class Refining(Copies):
        refines = ("launch-bound", "other")

    with pytest.raises(ContractError, match=r"^These rules refine each other in a circle: .*\."):
        catalogue([*CATALOGUE.values(), Other(), Refining()])


def test_what_no_rule_has_is_refused() -> None:
    class Misspelt(Copies):
        looks_agian: ClassVar[bool] = True

    class Untyped(Copies):
        only_inform = True

    with pytest.raises(ContractError, match=r" 'looks_agian', which no rule has\. Did you mean 'looks_again'\?$"):
        with_others(Misspelt())
    with pytest.raises(ContractError, match=r"Did you mean 'only_informs'\?$"):
        with_others(Untyped())


def test_a_field_is_a_threshold() -> None:
    class Field(Copies):
        looks_again: bool = True  # type: ignore[misc]

    with pytest.raises(ContractError, match=r"^Rule copies has a field 'looks_again' that is no threshold: "):
        with_others(Field())


def test_a_rule_has_an_id_of_its_own() -> None:
    class Nameless(Rule):
        pass

    with pytest.raises(ContractError, match=r"^Rule Nameless has no id\.$"):
        with_others(Nameless())
    with pytest.raises(ContractError, match=r"^Both Copies and Copies have the id copies\.$"):
        catalogue([Copies(), Copies()])


def test_no_two_facts_have_one_type_and_each_has_one() -> None:
    def again(facts: Facts) -> Frame:
        raise NotImplementedError

    def untold(facts: Facts):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    with pytest.raises(ContractError, match=r"^Both tb_ddp_doctor\.facts\.frame\.frame and .*again make Frame, and "):
        by_type([again], FACTS)
    with pytest.raises(ContractError, match=r"untold does not say what it returns"):
        by_type([untold], FACTS)
