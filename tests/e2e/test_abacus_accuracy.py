"""A sample of tools/abacus/evaluate.py: unseen questions in many wordings, and a long conversation."""
import concurrent.futures
import sys

import httpx
import pytest

from conftest import TOP

sys.path.insert(0, str(TOP / "tools" / "abacus"))
import evaluate  # noqa: E402


@pytest.fixture(scope="module")
def http(abacus):
    with httpx.Client(base_url=abacus.url, timeout=120) as client:
        yield client


def test_unseen_questions_in_every_wording(http):
    questions = evaluate.unseen_questions(len(evaluate.wordings()))
    assert len({question["wording"] for question in questions}) == len(questions)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda question: evaluate.ask_single(http, "abacus", question, 0.0), questions))
    wrong = [(row["question"], row["content"]) for row in rows if not evaluate.is_right(row)]
    assert len(wrong) <= 0.05 * len(rows), wrong
    assert all(row["reasoning"] for row in rows if row["thinking"])


def test_unseen_differences_below_zero(http):
    questions = evaluate.unseen_questions(60, below_zero=True)
    assert all(question["result"] < 0 for question in questions)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda question: evaluate.ask_single(http, "abacus", question, 0.0), questions))
    wrong = [(row["question"], row["content"]) for row in rows if not evaluate.is_right(row)]
    assert len(wrong) <= 0.05 * len(rows), wrong


def test_late_turns_stay_right_and_the_first_result_is_recalled(http):
    rows = evaluate.hold_conversation(http, "abacus", number=0, num_turns=24, temperature=0.0)
    assert rows[-1]["prompt_tokens"] > 300
    late = [row for row in rows if row["kind"] == "turn" and row["prompt_tokens"] > 150]
    assert len(late) >= 8
    assert sum(map(evaluate.is_right, late)) >= len(late) - 1, late
    assert rows[-1]["content"] == str(rows[0]["expected"])
