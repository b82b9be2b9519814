"""Agents with the official clients on the model that ships with the repository: calls, results in any order, reasoning
that comes back or is lost, odd parts. No turn is refused, and a turn whose history comes back as it was sent continues
what the cache has of the turn before."""
import json

import anthropic


ACTIONS = {"type": "object", "properties": {"action": {"enum": ["add", "look"]}, "n": {"type": "integer", "minimum": 0,
                                                                                      "maximum": 9}},
           "required": ["action"], "additionalProperties": False}
# A resume point at the end of a turn is at a multiple of four tokens; the last token of an answer never ran.
FINE = 5


def result(turn, call):
    return f"{turn}: ok {call}"


def test_openai_session_of_thirty_turns(abacus):
    client = abacus.client()
    tools = [{"type": "function", "function": {"name": "act", "parameters": ACTIONS}}]
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Begin."}]
    known = 0  # tokens of the last turn's prompt and answer
    for turn in range(30):
        answer = client.chat.completions.create(model="abacus", messages=messages, tools=tools, tool_choice="required",
                                                parallel_tool_calls=turn % 4 == 1, temperature=0.7, seed=turn, max_tokens=90)
        usage = answer.usage
        assert usage.prompt_tokens_details.cached_tokens >= known - FINE, turn
        message = answer.choices[0].message
        known = usage.prompt_tokens + usage.completion_tokens
        messages.append(message.model_dump(exclude_none=True))
        calls = message.tool_calls or []
        if answer.choices[0].finish_reason == "length" or not calls:
            known = 0  # what was cut is not part of the message
            messages[-1] = {"role": "assistant", "content": "Cut."}
            messages.append({"role": "user", "content": [{"type": "text", "text": "Go on."}, {"type": "input_audio",
                                                                                              "input_audio": {}}]})
            continue
        for call in reversed(calls) if turn % 2 else calls:
            json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(turn, call.function.name)})
        if usage.total_tokens > 3700:  # the context of this small model
            break
    assert turn >= 15


def test_anthropic_session_with_thinking(abacus):
    client = anthropic.Anthropic(base_url=abacus.url, api_key="none", max_retries=0, timeout=60)
    tools = [{"name": "act", "description": "Acts.", "input_schema": ACTIONS}]
    messages = [{"role": "user", "content": "Begin."}]
    known = 0
    for turn in range(20):
        with client.messages.stream(model="abacus", max_tokens=1100, messages=messages, tools=tools,
                                    tool_choice={"type": "any"},
                                    thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            answer = stream.get_final_message()
        usage = answer.usage
        assert usage.cache_read_input_tokens >= known - FINE, turn
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        calls = [block for block in answer.content if block.type == "tool_use"]
        prompt_tokens = usage.input_tokens + usage.cache_read_input_tokens
        known = prompt_tokens + usage.output_tokens if answer.stop_reason == "tool_use" else 0
        if turn % 5 == 3:
            blocks = [block for block in blocks if block["type"] != "thinking"]  # lost
            known = prompt_tokens - 1  # the prompt alone, without its <think>
        if answer.stop_reason != "tool_use":
            break
        messages.append({"role": "assistant", "content": blocks})
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": result(turn, call.name)}]}
            for call in (reversed(calls) if turn % 2 else calls)]})
        if prompt_tokens + usage.output_tokens > 2800:
            break
    assert turn >= 5
