"""The least work of attention where masks, windows, caches and packed sequences leave scores out, by hand."""

from __future__ import annotations

import itertools

import pytest
from test_operator_work import BF16, flops_and_bytes, of

from tb_ddp_doctor.digest.attention_work import ScoreMask, sum_of_seen

#: Four products' worth of operations of one score of a head of width 64: 2 x 64 each for scores and values.
OF_A_SCORE = 4 * 64


@pytest.mark.parametrize("from_bottom", [False, True])
def test_scores_that_count_are_counted_one_by_one(from_bottom: bool) -> None:
    sizes, widths = (1, 2, 3, 5, 8), (None, 0, 1, 3, 9)
    for queries, keys, left, right in itertools.product(sizes, sizes, widths, widths):
        own = keys - queries if from_bottom else 0
        seen = sum(
            (left is None or key >= query + own - left) and (right is None or key <= query + own + right)
            for query in range(queries)
            for key in range(keys)
        )
        assert ScoreMask(left, right, from_bottom).seen(queries, keys) == seen


def test_below_the_diagonal() -> None:
    assert [sum_of_seen(4, 4), sum_of_seen(2, 4), sum_of_seen(4, 2)] == [10, 3, 7]


def flash(queries: int, keys: int, causal: str, left: str = "-1", right: str = "-1") -> int:
    """Scores of FlashAttention for 2 x 8 heads of width 64."""
    query, key = ([2, queries, 8, 64], BF16), ([2, keys, 8, 64], BF16)
    flops = flops_and_bytes(of("flash_attn::_flash_attn_forward", query, key, key, "0.", "0.125", causal, left, right))[
        0
    ]
    assert flops % (2 * 8 * OF_A_SCORE) == 0
    return flops // (2 * 8 * OF_A_SCORE)


def test_an_answer_sees_all_of_its_cache() -> None:
    assert flash(1, 4096, "True") == 4096
    # A prompt's second half of 512 sees the first one, and itself up to the diagonal.
    assert flash(512, 1024, "True") == 512 * 512 + 512 * 513 // 2
    # Torch's own mask begins at the first query and the first key.
    query, key = ([2, 8, 512, 64], BF16), ([2, 8, 1024, 64], BF16)
    found = of("aten::_scaled_dot_product_efficient_attention", query, key, key, "", "False", "0.", "True")
    assert flops_and_bytes(found)[0] == 2 * 8 * OF_A_SCORE * (512 * 513 // 2)


def test_a_window_leaves_scores_out() -> None:
    # Causal, and 255 keys before: a triangle of 256, then 256 each.
    assert flash(4096, 4096, "True", "255") == 256 * 257 // 2 + (4096 - 256) * 256
    # 1 before and 1 behind: three each, two at the ends.
    assert flash(100, 100, "False", "1", "1") == 3 * 100 - 2


def test_backward_of_a_window_has_as_few() -> None:
    rows = ([2, 4096, 8, 64], BF16)
    given = [rows] * 5 + [([2, 8, 4096], "float")] + [rows] * 3
    found = of("flash_attn::_flash_attn_backward", *given, "0.", "0.125", "True", "255", "0")
    assert flops_and_bytes(found)[0] == 2 * 8 * flash(4096, 4096, "True", "255") * OF_A_SCORE * 5 // 2


def test_what_a_cache_holds_is_not_known() -> None:
    query, cache = ([8, 1, 16, 128], BF16), ([8, 4096, 16, 128], BF16)
    given = [query, cache, cache, *[""] * 9]
    rest = ["1", "4096", *[""] * 9, "0.1", "True", "-1", "-1"]
    assert of("flash_attn_3::fwd", *given, *rest) is not None
    used = [*given[:11], ([8], "int")]
    assert of("flash_attn_3::fwd", *used, *rest) is None
    pages = [*rest[:2], ([8, 64], "int"), *rest[3:]]
    assert of("flash_attn_3::fwd", *given, *pages) is None


def test_sequences_that_xformers_packs() -> None:
    # 16 of 1,024 rows, all as long as the longest, in a batch of one; without a mask each has a square of scores.
    # Two of 8,192 rows may be the longest of as many: then there are eight times as many scores.
    rows, starts = ([1, 16384, 6, 64], BF16), ([17], "int")
    given = [rows, rows, rows, "", starts, starts, "1024", "1024", "0."]
    for mask, scores in (("0", 1024 * 1024), ("1", 1024 * 1025 // 2), ("2", 1024 * 1025 // 2)):
        found = of("aten::_efficient_attention_forward", *given, mask, "True", "", "")
        assert flops_and_bytes(found)[0] == 6 * 16 * scores * OF_A_SCORE
    found = of("aten::_efficient_attention_forward", *given[:6], "8192", "8192", "0.", "0", "True", "", "")
    least = 6 * 16 * 1024 * 1024 * OF_A_SCORE
    assert (flops_and_bytes(found)[0], found.most_flops) == (least, 8 * least)


def test_sequences_that_torch_packs_for_flash_attention() -> None:
    rows, starts = ([16384, 6, 64], BF16), ([17], "int")
    given = [rows, rows, rows, starts, starts, "1024", "1024", "0."]
    found = of("aten::_flash_attention_forward", *given, "True", "False")
    assert flops_and_bytes(found)[0] == 6 * 16 * (1024 * 1025 // 2) * OF_A_SCORE
