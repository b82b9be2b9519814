"""`baleen bench engine`: what conversations and shared prompts compute again, on made-up steps with the cache of
the published model and on the model that ships with the repository."""
import csv
import subprocess

import pytest

from conftest import ABACUS, BIN

pytestmark = pytest.mark.usefixtures("program")


def bench(tmp_path, *arguments):
    file = tmp_path / "rows.csv"
    done = subprocess.run([BIN / "baleen", "bench", "engine", ABACUS, "--csv", file, *map(str, arguments)],
                          capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    with open(file) as rows:
        return done.stdout, {row["scenario"]: row for row in csv.DictReader(rows)}


def test_conversations_of_thirty_turns_recompute_almost_nothing(tmp_path):
    text, rows = bench(tmp_path, "--synthetic", "flash", "--cache-mib", 65536, "--max-step-tokens", 8192,
                       "--max-prefill-chunk", 4096, "--traffic", "turns,shared,mixed", "--answer-tokens", 32)
    assert "resume granularity: 128 tokens in prompts, 4 at turn ends" in text
    turns = rows["turns"]
    assert int(turns["requests"]) == 4 * 30
    assert int(turns["known_tokens"]) > 1_000_000
    assert float(turns["recomputed_rate"]) < 0.03
    assert float(rows["mixed"]["recomputed_rate"]) < 0.03
    assert float(rows["shared"]["hit_rate"]) > 0.8


def test_the_model_itself_answers_conversations_from_its_cache(tmp_path):
    _, rows = bench(tmp_path, "--traffic", "turns", "--conversations", 2, "--turns", 6, "--turn-tokens-min", 10,
                    "--turn-tokens-max", 30, "--answer-tokens", 6)
    turns = rows["turns"]
    assert int(turns["requests"]) == 12
    assert int(turns["known_tokens"]) > 0
    assert int(turns["recomputed_tokens"]) <= 4 * 12
    assert float(turns["tokens_per_draw"]) >= 1.0
