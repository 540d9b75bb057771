"""Steps with more tokens take longer, and are neither a change nor a slow rank where the job says how many each has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_ddp_doctor.capture import Doctor
from tb_ddp_doctor.history import blocks
from tb_ddp_doctor.history.read import history_files, read_history
from tb_ddp_doctor.history.step_tokens import of_equal_tokens
from tb_ddp_doctor.history.summary import Summary, summarise
from tb_ddp_doctor.history.windows import read_job

START_NS = 1_790_000_000 * 10**9
STEPS = 4_000
#: A token, and what each step takes beside them, µs.
A_TOKEN_US, BESIDE_US = 100.0, 200_000.0


def written(folder: Path, tokens: np.ndarray, slow_rank: int | None = None, *, says: bool = True) -> Summary:
    """The summary of four ranks whose steps have so many tokens, shape (4, STEPS); one is 5 % slower from halfway."""
    random = np.random.default_rng(5)
    busy = (BESIDE_US + A_TOKEN_US * tokens) * (1 + random.normal(0, 0.005, tokens.shape))
    if slow_rank is not None:
        busy[slow_rank, STEPS // 2 :] *= 1.05
    steps = busy.max(axis=0) + 100_000
    (folder / blocks.FOLDER).mkdir(parents=True)
    for rank in range(4):
        data = blocks.file_head(rank, 4, START_NS, f"node{rank // 2}")
        data += blocks.steps_block(0, START_NS, steps, busy[rank], tokens[rank] if says else None)
        (folder / blocks.FOLDER / f"rank{rank:05d}_{START_NS:020d}_00000{blocks.SUFFIX}").write_bytes(data)
    job, problems = read_job(history_files(folder))
    assert job is not None and problems == []
    return summarise(job)


def longer(from_step: int) -> np.ndarray:
    """Batches of 8,000 tokens, half more or less, and twice as long from a step on."""
    tokens = np.random.default_rng(1).uniform(4_000, 12_000, (4, STEPS)).round()
    tokens[:, from_step:] *= 2
    return tokens


def test_longer_sequences_are_no_change_of_the_job(tmp_path: Path) -> None:
    unsaid = written(tmp_path / "unsaid", longer(2_000), says=False).events[0]
    assert (unsaid.kind, unsaid.level, unsaid.first_step) == ("change", "job", 2_000)
    assert written(tmp_path / "said", longer(2_000)).events == ()


def test_a_rank_with_longer_batches_is_not_slow(tmp_path: Path) -> None:
    tokens = longer(STEPS)
    tokens[3, 1_000:] *= 1.2
    assert any(3 in event.ranks for event in written(tmp_path / "unsaid", tokens, says=False).events)
    assert written(tmp_path / "said", tokens).events == ()


def test_a_slow_rank_is_found_among_steps_of_any_length(tmp_path: Path) -> None:
    (event,) = written(tmp_path, longer(1_000), slow_rank=2).events
    assert (event.kind, event.ranks) == ("change", (2,))
    assert event.first_step == pytest.approx(STEPS // 2, abs=STEPS // 100)


@given(st.floats(0, 1_000), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_times_on_a_line_are_equal_at_equal_tokens(a_token_us: float, unknown: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(1, 10_000, 200).astype(np.float32)
    busy = 1e7 + a_token_us * tokens.astype(np.float64)
    tokens[:unknown] = 0
    equal = of_equal_tokens(busy, tokens, 5_000)
    np.testing.assert_allclose(equal[unknown:], 1e7 + a_token_us * 5_000, rtol=1e-5)
    np.testing.assert_array_equal(equal[:unknown], busy[:unknown])


def test_few_steps_or_equal_ones_stay_as_they_are() -> None:
    busy = np.linspace(1e6, 2e6, 40)
    for tokens in (None, np.full(40, 500.0), np.append(np.zeros(20), np.arange(1.0, 21) * 100)):
        assert of_equal_tokens(busy, tokens, 500).tolist() == busy.tolist()


def test_a_doctor_keeps_the_tokens_of_all_parts_of_a_step(tmp_path: Path) -> None:
    doctor = Doctor(tmp_path, history=True)
    doctor.tokens(7)
    for step in range(4):
        doctor.step(step)
        doctor.tokens(100 * step)
        for no_number in (-7, float("nan"), float("inf"), "many"):
            doctor.tokens(no_number)  # type: ignore[arg-type]
        doctor.tokens(5)
    doctor.close()
    (file,) = history_files(tmp_path)
    history = read_history(file)
    assert history is not None
    assert [stretch.tokens.tolist() for stretch in history.stretches if stretch.tokens is not None] == [[5, 105, 205]]
