"""The official OpenAI client's responses against the real server on a scripted executor."""
import json

import openai
import pytest

WEATHER = {"type": "function", "name": "weather", "description": "Weather of a city.", "strict": False,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}
CALLS = [{"city": "São \"Paulo\"", "days": [1, {"a": None}]}, {"city": "<b>Rome</b>"}]


def ask(server, prompt, **fields):
    return server.client().responses.create(model=server.model, input=prompt, **fields)


def streamed(server, prompt, **fields):
    """The client's own parser puts the events together and holds them against each other."""
    with server.client().responses.stream(model=server.model, input=prompt, **fields) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


@pytest.fixture(params=[ask, streamed], ids=["whole", "streamed"])
def answer(request):
    return request.param


def test_text(scripted, answer):
    response = answer(scripted, "greet")
    assert response.output_text == "Hello, 世界! 👩‍💻"
    assert response.status == "completed"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_reasoning_is_an_item(scripted, answer):
    response = answer(scripted, "ponder", reasoning={"effort": "high"})
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "First add."
    assert response.output_text == "It is 4."
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_tools_and_their_results(scripted, answer):
    response = answer(scripted, "call the tool", tools=[WEATHER])
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == CALLS
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in calls]
    # By the client's own objects, and by the server's memory.
    again = ask(scripted, [{"role": "user", "content": "call"}] + response.output + results, tools=[WEATHER])
    assert again.output_text == "fine"
    again = ask(scripted, results, previous_response_id=response.id, tools=[WEATHER])
    assert again.output_text == "fine" or again.output


def test_kept_responses(scripted):
    response = ask(scripted, "greet")
    assert scripted.client().responses.retrieve(response.id).output_text == response.output_text
    with pytest.raises(openai.NotFoundError):
        scripted.client().responses.retrieve("resp_none")


def test_a_schema_is_kept(scripted, answer):
    response = answer(scripted, "no script obeys a schema", text={"format": {
        "type": "json_schema", "name": "n", "strict": True, "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
            "additionalProperties": False}}})
    assert 0 <= json.loads(response.output_text)["n"] <= 9


def test_faults(scripted):
    with pytest.raises(openai.BadRequestError) as fault:
        ask(scripted, "x", tools=[{"type": "web_search"}])
    assert fault.value.param == "tools[0].type"
    with pytest.raises(openai.BadRequestError) as fault:
        ask(scripted, [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
    assert fault.value.param == "input[0].content[0].type"
