"""The official OpenAI client against the real server on a scripted executor."""
import concurrent.futures
import json

import httpx
import openai
import pytest

from conftest import start_scripted

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}}


def say(text):
    return [{"role": "user", "content": text}]


def chat(server, text, **fields):
    return server.client().chat.completions.create(model=server.model, messages=say(text), **fields)


def joined(stream):
    """content, reasoning, finish reason and calls {index: [id, name, arguments]} of choice 0."""
    content, reasoning, finish, calls = "", "", None, {}
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.index not in calls:
                    assert call.id and call.function.name
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
    return content, reasoning, finish, calls


def test_chat_whole_and_streamed(scripted):
    whole = chat(scripted, "greet")
    assert whole.choices[0].message.content == "Hello, 世界! 👩‍💻"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(chat(scripted, "greet", stream=True, stream_options={"include_usage": True}))
    assert joined(chunks)[0] == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_reasoning_is_apart(scripted):
    on = {"thinking": {"type": "enabled"}}
    whole = chat(scripted, "ponder", extra_body=on)
    assert whole.choices[0].message.reasoning_content == "First add."
    assert whole.choices[0].message.content == "It is 4."
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    content, reasoning, finish, _ = joined(chat(scripted, "ponder", stream=True, extra_body=on))
    assert (content, reasoning, finish) == ("It is 4.", "First add.", "stop")
    effort = chat(scripted, "ponder", reasoning_effort="high")
    assert effort.choices[0].message.reasoning_content == "First add."


def test_tools_and_their_results(scripted):
    whole = chat(scripted, "call the tool", tools=[WEATHER])
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls" and message.content == "Looking."
    arguments = [json.loads(call.function.arguments) for call in message.tool_calls]
    assert arguments == [{"city": "São \"Paulo\"", "days": [1, {"a": None}]}, {"city": "<b>Rome</b>"}]
    content, _, finish, calls = joined(chat(scripted, "call the tool", tools=[WEATHER], stream=True))
    assert (content, finish) == ("Looking.", "tool_calls")
    assert [json.loads(calls[i][2]) for i in range(2)] == arguments
    # The client's own object goes back in, with a result.
    history = say("call") + [message.model_dump()] + [
        {"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
    again = scripted.client().chat.completions.create(model=scripted.model, messages=history, tools=[WEATHER])
    assert again.choices[0].message.content == "fine"


def test_logprobs(scripted):
    whole = chat(scripted, "greet", logprobs=True, top_logprobs=2)
    tokens = whole.choices[0].logprobs.content
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == whole.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 and token.logprob < 0 for token in tokens)
    streamed = [token for chunk in chat(scripted, "greet", logprobs=True, top_logprobs=2, stream=True)
                for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content]
    assert [token.bytes for token in streamed] == [token.bytes for token in tokens]


def test_several_choices(scripted):
    whole = chat(scripted, "greet", n=4, seed=7)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    seen = {index: "" for index in range(4)}
    for chunk in chat(scripted, "greet", n=4, stream=True):
        for choice in chunk.choices:
            seen[choice.index] += choice.delta.content or ""
    assert set(seen.values()) == {"Hello, 世界! 👩‍💻"}


def test_text_completions(scripted):
    client = scripted.client()
    whole = client.completions.create(model=scripted.model, prompt=["greet", "other"], max_tokens=64, logprobs=1)
    assert [choice.text for choice in whole.choices] == ["Hello, 世界! 👩‍💻", "fine"]
    assert len(whole.choices[1].logprobs.tokens) == len(whole.choices[1].logprobs.token_logprobs)
    stream = client.completions.create(model=scripted.model, prompt="greet", max_tokens=64, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello, 世界! 👩‍💻"


def test_stop_and_limits(scripted):
    assert chat(scripted, "greet", stop=["世"]).choices[0].message.content == "Hello, "
    cut = chat(scripted, "go on", max_tokens=5)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 5


def test_models(scripted):
    (card,) = scripted.client().models.list().data
    assert (card.id, card.owned_by) == ("scripted", "baleen")
    assert scripted.client().models.retrieve("scripted").id == "scripted"


def test_errors_name_the_field(scripted):
    with pytest.raises(openai.NotFoundError) as fault:
        scripted.client().chat.completions.create(model="other", messages=say("x"))
    assert fault.value.param == "model" and fault.value.type == "not_found_error"
    for fields, param in [({"temperature": -1}, "temperature"),
                          ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
                          ({"tool_choice": "required"}, "tool_choice"),
                          ({"response_format": {"type": "yaml"}}, "response_format.type"),
                          ({"max_tokens": 10**6}, "messages")]:
        with pytest.raises(openai.BadRequestError) as fault:
            chat(scripted, "x", **fields)
        assert fault.value.param == param and fault.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as fault:
        scripted.client().chat.completions.create(
            model=scripted.model, messages=say("x") + [{"role": "robot", "content": "y"}])
    assert fault.value.param == "messages[1].role"
    assert chat(scripted, "x").choices[0].message.content == "fine"


def test_error_inside_a_stream(scripted):
    with pytest.raises(openai.APIError) as fault:
        list(chat(scripted, "break", stream=True))
    assert fault.value.type == "server_error"
    with pytest.raises(openai.InternalServerError):
        chat(scripted, "break")


def test_64_streams_at_once(scripted):
    def one(number):
        text = "greet" if number % 2 else "ponder"
        fields = {} if number % 2 else {"extra_body": {"thinking": {"type": "enabled"}}}
        return joined(chat(scripted, text, stream=True, **fields))[:2]

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(one, range(64)))
    for number, answer in enumerate(answers):
        assert answer == (("Hello, 世界! 👩‍💻", "") if number % 2 else ("It is 4.", "First add."))


def wait_for_idle(server):
    for _ in range(500):
        if server.metric("sglang:num_running_reqs") == 0:
            return
        httpx.get(f"{server.url}/health")
    pytest.fail("the request still runs")


def test_leaving_a_stream_frees_its_slot(scripted):
    aborted = scripted.metric("sglang:num_aborted_requests_total")
    stream = chat(scripted, "go on", stream=True)
    next(iter(stream))
    stream.close()
    wait_for_idle(scripted)
    assert scripted.metric("sglang:num_aborted_requests_total") == aborted + 1


def test_key_is_asked_for(tmp_path):
    server = start_scripted(tmp_path, api_key="sesame")
    with pytest.raises(openai.AuthenticationError):
        chat(server, "x")
    friend = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0)
    assert friend.chat.completions.create(model="scripted", messages=say("x")).choices[0].message.content == "fine"
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.stop() == 0


def test_sigterm_lets_an_answer_finish(tmp_path):
    server = start_scripted(tmp_path, step_delay_us=20000)
    stream = iter(chat(server, "greet", stream=True))
    first = next(stream)
    server.process.terminate()
    content, _, finish, _ = joined([first, *stream])
    assert (content, finish) == ("Hello, 世界! 👩‍💻", "stop")
    assert server.wait() == 0


def test_sigterm_cuts_an_endless_answer(tmp_path):
    server = start_scripted(tmp_path, step_delay_us=1000, drain_timeout_ms=200, max_context=1 << 20)
    stream = iter(chat(server, "go on", stream=True))
    next(stream)
    server.process.terminate()
    with pytest.raises(openai.APIError) as fault:
        list(stream)
    assert fault.value.type == "service_unavailable"
    assert server.wait() == 0
