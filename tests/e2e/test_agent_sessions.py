"""Agents with the official clients on the model that ships with the repository: calls, results in any order, reasoning
that comes back or is lost, odd parts. No turn is refused, and each goes on behind all that the cache can hold of the prompt
before it: to the last multiple of 128 tokens where the answer comes back in other words (this model spells its calls in ways
that the format does not repeat), to the last multiple of 4 where it comes back as it was. What every dialect gives of a
history is tested token by token in server/session_test.cpp. Thirty turns with BALEEN_LONG=1 (make check-long)."""
import json
import os

import anthropic
import httpx


# Small, as is the context of this model: a call takes it about a hundred tokens.
ACTIONS = {"type": "object", "properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"], "additionalProperties": False}
PROMPT_STEP = 128  # resume points inside prompts lie on its multiples
TURN_STEP = 4  # those at the ends of turns
TURNS = 30 if os.environ.get("BALEEN_LONG") else 8


def result(turn, call):
    return f"{turn}: ok {call}"


class KeptTokens:
    """What the cache must give of a prompt: all that it shares with the prompt before, to the last resume point."""

    def __init__(self, url):
        self.url = url
        self.before = []

    def least(self, path, body):
        answer = httpx.post(f"{self.url}{path}", json=body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()["tokens"]
        shared = len(os.path.commonprefix([self.before, tokens]))
        shared = max(0, min(shared, len(self.before) - 1))  # no prompt is resumed behind its last token
        self.before = tokens
        return shared // PROMPT_STEP * PROMPT_STEP


def test_plain_turns_go_on_behind_the_whole_turn_before(abacus):
    client = abacus.client()
    messages = []
    total = 0  # tokens of the turn before, its end token included, which alone never ran
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"What is {20 + turn} + {turn % 7}?"})
        answer = client.chat.completions.create(model="abacus", messages=messages, temperature=0, max_tokens=40)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens_details.cached_tokens == max(0, total - 1) // TURN_STEP * TURN_STEP, turn
        total = answer.usage.total_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_openai_session(abacus):
    client = abacus.client()
    tools = [{"type": "function", "function": {"name": "act", "parameters": ACTIONS}}]
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Begin."}]
    kept = KeptTokens(abacus.url)
    num_continued = 0
    for turn in range(TURNS):
        body = {"model": "abacus", "messages": messages, "tools": tools, "tool_choice": "required",
                "parallel_tool_calls": turn % 4 == 1, "temperature": 0.7, "seed": turn, "max_tokens": 400}
        least = kept.least("/v1/chat/completions/render", body)
        answer = client.chat.completions.create(**body)
        usage = answer.usage
        assert usage.prompt_tokens == len(kept.before), turn
        assert usage.prompt_tokens_details.cached_tokens >= least, turn
        num_continued += usage.prompt_tokens_details.cached_tokens > 0
        message = answer.choices[0].message
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
        # All but its last token, which is followed by other words where reasoning is lost.
        assert usage.cache_read_input_tokens >= max(0, known - 1) // PROMPT_STEP * PROMPT_STEP, turn
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
