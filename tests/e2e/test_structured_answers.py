"""Structured answers and forced calls of models that would rather write something else, held against their schemas
by an independent validator: a made-up model that draws evenly from what is allowed, the model that ships with the
repository, and a real one with random weights, on servers with and without drafts (rows under a grammar get none).

BALEEN_LONG=1 (make check-long) asks for 1,000 answers of each kind and model, else for a short form of it; with
BALEEN_RESULTS a row of each is appended to that CSV file.
"""
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import subprocess
import time

import httpx
import jsonschema
import pytest
import tokenizers

from conftest import ABACUS, Server, append_row, commit, start_scripted

LONG = bool(os.environ.get("BALEEN_LONG"))
SANITIZED_SHARE = 5  # builds without the program are instrumented ones: a part of the short form shows a bad access
NUM_SCHEMAS = 50
AT_A_TIME = 16
BLANKS_IN = 10  # real models fill the blanks that JSON allows, which takes most of their tokens: one answer in so many may
WORDS = ["rot", "grün", "蓝色", "👩‍💻", "a b", "", "\"quoted\"", "back\\slash", "line\nend", "ｶﾅ"]
# Name, drafts, answers of each kind in the short form; 0: only in the long one.
MODELS = [("made-up", 0, 50), ("made-up", 3, 20), ("abacus", 0, 0), ("abacus", 3, 4), ("random", 0, 0), ("random", 3, 4)]


def some_schema(source, depth):
    """A schema whose answers are bounded, so that a random model ends too."""
    leaves = [
        lambda: {"type": "integer", "minimum": source.randint(-50, 0), "maximum": source.randint(1, 999)},
        lambda: {"type": "string", "maxLength": source.randint(0, 12)},
        lambda: {"type": "string", "minLength": 2, "maxLength": 5},
        lambda: {"enum": source.sample(WORDS, 3)},
        lambda: {"enum": [1, "one", None, True]},
        lambda: {"const": source.choice(WORDS)},
        lambda: {"type": "boolean"},
        lambda: {"type": ["boolean", "null"]},
    ]
    if depth == 0:
        return source.choice(leaves)()
    kind = source.randrange(4)
    if kind == 0:
        return {"type": "array", "items": some_schema(source, depth - 1), "minItems": source.randint(0, 1),
                "maxItems": source.randint(1, 3)}
    if kind == 1:
        return {"anyOf": [some_schema(source, depth - 1) for _ in range(source.randint(2, 3))]}
    return some_object(source, depth)


def some_object(source, depth):
    names = source.sample(["n", "name", "größe", "名前", "tags", "inner", "x_1"], source.randint(1, 4))
    return {"type": "object", "properties": {name: some_schema(source, depth - 1) for name in names},
            "required": names[:source.randint(1, len(names))], "additionalProperties": False}


def blanks():
    """A bias against every token of abacus's vocabulary that is only blanks; where nothing else goes on they still come."""
    words = tokenizers.Tokenizer.from_file(str(ABACUS / "tokenizer.json"))
    texts = {number: words.decode([number]) for number in range(words.get_vocab_size())}
    return {str(number): -100 for number, text in texts.items() if text and not text.strip()}


def start_model(name, drafts, folder, program):
    if name == "made-up":
        return start_scripted(folder, step_delay_us=0, max_context=16384, max_drafts=drafts,
                              scripts=[{"prompt_contains": "", "random_seed": 1}])
    model = ABACUS
    if name == "random":
        model = folder / "random"
        small = json.loads((ABACUS / "config.json").read_text()) | {"num_hidden_layers": 2, "compress_ratios": [4, 128, 0]}
        (folder / "config.json").write_text(json.dumps(small))
        subprocess.run([program, "synth", model, "--config", folder / "config.json", "--tokenizer", ABACUS, "--seed", "7"],
                       check=True, capture_output=True)
    speculation = ["--speculative-num-steps", drafts] if drafts else ["--speculative-algorithm", "none"]
    return Server([program, "serve", model, "--port", "0", "--drain-timeout", "5", "--log-level", "warn", "--threads", "1",
                   *speculation], name)


@pytest.fixture(scope="module", params=MODELS, ids=lambda value: f"{value[0]}-drafts{value[1]}")
def asked(request, tmp_path_factory):
    """A server, and how many answers of each kind are asked of it."""
    name, drafts, num_short = request.param
    if num_short == 0 and not LONG:
        pytest.skip("only in the long form")
    program = None if name == "made-up" else request.getfixturevalue("program")
    server = start_model(name, drafts, tmp_path_factory.mktemp("model"), program)
    server.drafts = drafts
    server.blanks = {} if program is None else blanks()
    yield server, 1000 if LONG else num_short // (SANITIZED_SHARE if os.environ.get("BALEEN_WITHOUT_PROGRAM") else 1)
    assert server.stop() == 0, "".join(server.log)


def ask(server, number, **fields):
    thinking = {"type": "enabled", "budget_tokens": 10} if number % 2 else {"type": "disabled"}
    if server.blanks and number % BLANKS_IN:
        fields["logit_bias"] = server.blanks
    answer = httpx.post(f"{server.url}/v1/chat/completions", timeout=300, json={
        "model": server.model, "messages": [{"role": "user", "content": f"number {number}"}], "thinking": thinking,
        "seed": number, **fields})
    assert answer.status_code == 200, (fields, answer.text)
    return answer.json()


def ask_all(server, count, check, kind):
    """`check(number)` for each, several at a time; every one must hold. Gives the tokens of an answer."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        tokens = list(pool.map(check, range(count)))
    if results := os.environ.get("BALEEN_RESULTS"):
        append_row(pathlib.Path(results),
                   ["model", "drafts", "kind", "schemas", "answers", "valid", "mean_tokens", "seconds", "commit", "date"],
                   [server.model if server.model != "scripted" else "made-up", server.drafts, kind, NUM_SCHEMAS, count,
                    len(tokens), f"{sum(tokens) / count:.1f}", f"{time.monotonic() - begun:.0f}", commit(),
                    datetime.date.today().isoformat()])


def test_schema_answers(asked):
    server, count = asked
    source = random.Random(7)
    schemas = [some_object(source, source.randint(1, 3)) for _ in range(NUM_SCHEMAS)]

    def check(number):
        schema = schemas[number % NUM_SCHEMAS]
        body = ask(server, number, response_format={
            "type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop", (schema, choice)
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        return body["usage"]["completion_tokens"]
    ask_all(server, count, check, "json_schema")


def test_forced_calls(asked):
    server, count = asked
    source = random.Random(11)
    schemas = [some_object(source, source.randint(1, 2)) for _ in range(NUM_SCHEMAS)]

    def check(number):
        chosen = [schemas[(number + k) % NUM_SCHEMAS] for k in range(3)]
        tools = [{"type": "function", "function": {"name": f"tool_{k}", "parameters": schema}}
                 for k, schema in enumerate(chosen)]
        named = number % 3 == 0
        # How many calls a block has is the model's choice: one that never learned to call goes on until it is cut.
        body = ask(server, number, tools=tools, parallel_tool_calls=server.model == "scripted", tool_choice={
            "type": "function", "function": {"name": "tool_1"}} if named else "required")
        choice = body["choices"][0]
        assert choice["finish_reason"] == "tool_calls", (chosen, choice)
        calls = choice["message"]["tool_calls"]
        assert not named or [call["function"]["name"] for call in calls] == ["tool_1"]
        for call in calls:
            schema = chosen[int(call["function"]["name"].rsplit("_", 1)[1])]
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
        return body["usage"]["completion_tokens"]
    ask_all(server, count, check, "forced_call")
