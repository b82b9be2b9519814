"""The official Anthropic client against the real server on a scripted executor."""
import anthropic
import pytest

from conftest import start_scripted

WEATHER = {"name": "weather", "description": "Weather of a city.",
           "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}
CALLS = [{"city": "São \"Paulo\"", "days": [1, {"a": None}]}, {"city": "<b>Rome</b>"}]
THINK = {"type": "enabled", "budget_tokens": 1024}


def client(server, **options):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60, **options)


def arguments(server, text, **fields):
    return {"model": server.model, "max_tokens": 1000, "messages": [{"role": "user", "content": text}], **fields}


def ask(server, text, **fields):
    return client(server).messages.create(**arguments(server, text, **fields))


def streamed(server, text, **fields):
    with client(server).messages.stream(**arguments(server, text, **fields)) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


@pytest.fixture(params=[ask, streamed], ids=["whole", "streamed"])
def answer(request):
    return request.param


def test_text(scripted, answer):
    message = answer(scripted, "greet")
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == "Hello, 世界! 👩‍💻"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0 and message.usage.input_tokens > 0


def test_thinking_is_a_block_with_a_signature(scripted, answer):
    message = answer(scripted, "ponder", thinking=THINK)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "First add." and message.content[0].signature
    assert message.content[1].text == "It is 4."


def test_tools_and_their_results(scripted, answer):
    message = answer(scripted, "call the tool", tools=[WEATHER])
    assert message.stop_reason == "tool_use"
    assert message.content[0].text == "Looking."
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [call.input for call in calls] == CALLS
    # The client's own objects go back in, with results.
    history = [{"role": "user", "content": "call"}, {"role": "assistant", "content": message.content},
               {"role": "user", "content": [
                   {"type": "tool_result", "tool_use_id": call.id, "content": "sun"} for call in calls]}]
    again = client(scripted).messages.create(
        model=scripted.model, max_tokens=100, messages=history, tools=[WEATHER])
    assert again.content[0].text == "fine"


def test_counting(scripted):
    fields = arguments(scripted, "greet", tools=[WEATHER], system="Be kind.")
    del fields["max_tokens"]
    count = client(scripted).messages.count_tokens(**fields).input_tokens
    usage = ask(scripted, "greet", tools=[WEATHER], system="Be kind.").usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


def test_an_agent_of_many_turns_is_never_refused(scripted):
    """Parallel calls, lost reasoning, odd parts: 30 turns with the client's own objects as history."""
    history = []
    for turn in range(30):
        text = ["call the tool", "ponder", "greet"][turn % 3]
        parts = [{"type": "text", "text": text}]
        if turn % 5 == 1:
            parts.insert(0, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}})
        if history and any(block.type == "tool_use" for block in history[-1]["content"]):
            parts = [{"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sun"}]}
                     for block in reversed(history[-1]["content"]) if block.type == "tool_use"] + parts
        history.append({"role": "user", "content": parts})
        message = client(scripted).messages.create(
            model=scripted.model, max_tokens=300, messages=history, tools=[WEATHER], thinking=THINK,
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}])
        content = [block for block in message.content if turn % 2 or block.type != "thinking"]
        assert content
        history.append({"role": "assistant", "content": content})


def test_faults_are_the_clients_exceptions(scripted):
    with pytest.raises(anthropic.NotFoundError):
        client(scripted).messages.create(model="other", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        ask(scripted, "hi", extra_body={"temperature": -1})
    with pytest.raises(anthropic.BadRequestError, match="context"):
        ask(scripted, "hi " * 5000)
    with pytest.raises(anthropic.APIError):
        streamed(scripted, "break")


def test_keys(tmp_path):
    server = start_scripted(tmp_path, api_key="sesame")
    with pytest.raises(anthropic.AuthenticationError):
        ask(server, "greet")
    opened = anthropic.Anthropic(base_url=server.url, api_key="sesame", max_retries=0)
    assert opened.messages.create(**arguments(server, "greet")).content[0].text.startswith("Hello")
    assert server.stop() == 0
