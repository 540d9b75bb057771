"""What repeats in a sequence, as layers do in a model's operators: where each repeat begins and ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.digest.repeats import SequenceRepeats, repeats

BLOCK = "norm linear attention linear add norm linear gelu linear add"
HALVING = "conv bn relu conv bn relu conv bn conv bn add_ relu"
PLAIN = "conv bn relu conv bn relu conv bn add_ relu"


def found(text: str, last: str = "") -> SequenceRepeats:
    number = {word: at for at, word in enumerate(sorted({*text.split(), *last.split()}))}
    return repeats(np.array([number[word] for word in text.split()], np.int64), {number[word] for word in last.split()})


def pieces(text: str, last: str = "") -> list[str]:
    words, repeat = text.split(), found(text, last)
    return [" ".join(words[a:b]) for a, b in zip(repeat.first.tolist(), repeat.end.tolist(), strict=True)]


def test_blocks_of_a_transformer_are_repeats_and_what_is_around_them_is_none() -> None:
    assert pieces(f"embedding {f'{BLOCK} ' * 6} mean linear loss") == [BLOCK] * 6


def test_where_several_cuts_are_as_good_repeats_end_with_a_residuals_addition() -> None:
    """What is before the first block ends as a block does, and what is behind the last one begins as one does."""
    text = f"embedding add {f'{BLOCK} ' * 4} norm linear loss"
    assert pieces(text, "add") == [BLOCK] * 4
    assert pieces(text)[0].startswith("add norm")


def test_blocks_of_two_kinds_are_repeats() -> None:
    stages = [[HALVING] + [PLAIN] * more for more in (2, 3, 5, 2)]
    blocks = [block for stage in stages for block in stage]
    text = f"conv bn relu pool {' '.join(blocks)} pool flatten linear loss"
    assert pieces(text, "add_") == blocks
    assert found(text).same == 12


def test_a_block_with_operators_of_its_own_is_a_repeat() -> None:
    blocks = [BLOCK] * 6 + [BLOCK.replace("gelu", "gelu view copy view view copy")] + [BLOCK]
    assert pieces(f"embedding {' '.join(blocks)} loss") == blocks


def test_an_operator_that_is_called_again_and_again_is_no_reason_to_cut_elsewhere() -> None:
    assert pieces(f"embedding {f'{BLOCK} ' * 6} {'mm ' * 300} loss") == [BLOCK] * 6


@pytest.mark.parametrize("text", ["", "a", "a b", "a b c d e f g"])
def test_what_does_not_repeat_has_none(text: str) -> None:
    assert pieces(text) == []


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=30),
    st.integers(3, 12),
    st.lists(st.integers(6, 9), max_size=5),
    st.lists(st.integers(10, 14), max_size=5),
)
def test_repeats_cover_the_blocks_and_nothing_else(
    block: list[int], count: int, before: list[int], behind: list[int]
) -> None:
    """Whatever repeats within a block, repeats lie in the blocks, in order and apart, and cover nearly all of them."""
    text = before + [100, *block] * count + behind
    repeat = repeats(np.array(text))
    first, end = repeat.first, repeat.end
    assert first[0] >= len(before)
    assert end[-1] <= len(before) + (len(block) + 1) * count
    assert (first < end).all()
    assert (end[:-1] <= first[1:]).all()
    assert 2 * int((end - first).sum()) >= (len(block) + 1) * (count - 1)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_any_sequence_has_repeats_apart_and_in_order(tokens: list[int]) -> None:
    repeat = repeats(np.array(tokens, np.int64), {1})
    assert (repeat.first < repeat.end).all()
    assert (repeat.end[:-1] <= repeat.first[1:]).all()
    assert not len(repeat) or (repeat.first[0] >= 0 and repeat.end[-1] <= len(tokens))
