"""Answers of a random model under grammars, held against their schemas by an independent validator.

BALEEN_LONG=1 (make check-long) asks for 1,000 answers of each kind, else for a short form of it.
"""
import json
import os
import random

import httpx
import jsonschema
import pytest

from conftest import start_scripted

NUM_SCHEMAS = 50
NUM_ANSWERS = 1000 if os.environ.get("BALEEN_LONG") else 100
WORDS = ["rot", "grün", "蓝色", "👩‍💻", "a b", "", "\"quoted\"", "back\\slash", "line\nend", "ｶﾅ"]


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


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    server = start_scripted(tmp_path_factory.mktemp("random"), step_delay_us=0, max_context=16384,
                            scripts=[{"prompt_contains": "", "random_seed": 1}])
    yield server
    assert server.stop() == 0, "".join(server.log)


def ask(server, number, **fields):
    thinking = {"type": "enabled", "budget_tokens": 10} if number % 2 else {"type": "disabled"}
    answer = httpx.post(f"{server.url}/v1/chat/completions", timeout=60, json={
        "model": server.model, "messages": [{"role": "user", "content": f"number {number}"}], "thinking": thinking,
        **fields})
    assert answer.status_code == 200, (fields, answer.text)
    return answer.json()["choices"][0]


def test_schema_answers(random_model):
    source = random.Random(7)
    schemas = [some_object(source, source.randint(1, 3)) for _ in range(NUM_SCHEMAS)]
    for number in range(NUM_ANSWERS):
        schema = schemas[number % NUM_SCHEMAS]
        choice = ask(random_model, number, response_format={
            "type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
        assert choice["finish_reason"] == "stop", (schema, choice)
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_forced_calls(random_model):
    source = random.Random(11)
    schemas = [some_object(source, source.randint(1, 2)) for _ in range(NUM_SCHEMAS)]
    for number in range(NUM_ANSWERS):
        chosen = [schemas[(number + k) % NUM_SCHEMAS] for k in range(3)]
        tools = [{"type": "function", "function": {"name": f"tool_{k}", "parameters": schema}}
                 for k, schema in enumerate(chosen)]
        named = number % 3 == 0
        choice = ask(random_model, number, tools=tools, tool_choice={
            "type": "function", "function": {"name": "tool_1"}} if named else "required")
        assert choice["finish_reason"] == "tool_calls", (chosen, choice)
        calls = choice["message"]["tool_calls"]
        assert not named or [call["function"]["name"] for call in calls] == ["tool_1"]
        for call in calls:
            schema = chosen[int(call["function"]["name"].rsplit("_", 1)[1])]
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
