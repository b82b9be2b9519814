"""Agents with the official clients on the model that ships with the repository: calls, results in any order, reasoning
that comes back or is lost, odd parts. No turn is refused, and each continues what the cache has of the prompt before. (That
a turn is its history as it was said, token by token, is tested in server/session_test.cpp: this model spells its calls in
ways that the format does not repeat.) Thirty turns with BALEEN_LONG=1 (make check-long)."""
import json
import os

import anthropic


# Small, as is the context of this model: a call takes it about a hundred tokens.
ACTIONS = {"type": "object", "properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"], "additionalProperties": False}
# Inside prompts resume points are 128 tokens apart, the last may lie in the part before that.
FINE = 256
TURNS = 30 if os.environ.get("BALEEN_LONG") else 8


def result(turn, call):
    return f"{turn}: ok {call}"


def test_openai_session(abacus):
    client = abacus.client()
    tools = [{"type": "function", "function": {"name": "act", "parameters": ACTIONS}}]
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Begin."}]
    known = 0  # tokens of the last turn's prompt
    num_continued = 0
    for turn in range(TURNS):
        answer = client.chat.completions.create(model="abacus", messages=messages, tools=tools, tool_choice="required",
                                                parallel_tool_calls=turn % 4 == 1, temperature=0.7, seed=turn, max_tokens=400)
        usage = answer.usage
        assert usage.prompt_tokens_details.cached_tokens >= known - FINE, turn
        num_continued += usage.prompt_tokens_details.cached_tokens > 0
        message = answer.choices[0].message
        known = usage.prompt_tokens
        messages.append(message.model_dump(exclude_none=True))
        calls = message.tool_calls or []
        if answer.choices[0].finish_reason == "length" or not calls:
            messages[-1] = {"role": "assistant", "content": "Cut."}
            messages.append({"role": "user", "content": [{"type": "text", "text": "Go on."}, {"type": "input_audio",
                                                                                              "input_audio": {}}]})
            continue
        for call in reversed(calls) if turn % 2 else calls:
            json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(turn, call.function.name)})
        if usage.total_tokens > 3700:  # the context of this small model
            break
    assert num_continued >= TURNS // 2


def test_anthropic_session_with_thinking(abacus):
    client = anthropic.Anthropic(base_url=abacus.url, api_key="none", max_retries=0, timeout=60)
    tools = [{"name": "act", "description": "Acts.", "input_schema": ACTIONS}]
    messages = [{"role": "user", "content": "Begin."}]
    known = 0
    num_continued = 0
    for turn in range(TURNS):
        with client.messages.stream(model="abacus", max_tokens=400, messages=messages, tools=tools,
                                    tool_choice={"type": "any", "disable_parallel_tool_use": turn % 4 != 1},
                                    thinking={"type": "enabled", "budget_tokens": 12}) as stream:
            answer = stream.get_final_message()
        usage = answer.usage
        assert usage.cache_read_input_tokens >= known - FINE, turn
        num_continued += usage.cache_read_input_tokens > 0
        prompt_tokens = usage.input_tokens + usage.cache_read_input_tokens
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        calls = [block for block in answer.content if block.type == "tool_use"]
        if answer.stop_reason != "tool_use":
            known = prompt_tokens
            messages += [{"role": "assistant", "content": "Cut."}, {"role": "user", "content": "Go on."}]
            continue
        known = prompt_tokens
        if turn % 5 == 3:
            blocks = [block for block in blocks if block["type"] != "thinking"]  # lost
        messages.append({"role": "assistant", "content": blocks})
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": result(turn, call.name)}]}
            for call in (reversed(calls) if turn % 2 else calls)]})
        if prompt_tokens + usage.output_tokens > 3700:
            break
    assert num_continued >= TURNS // 2
