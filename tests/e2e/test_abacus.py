"""The program serving models/abacus: real answers, README examples, clients that leave, the end."""
import concurrent.futures
import json
import re
import subprocess

import pytest

from conftest import ABACUS, BIN, TOP, Server
from test_openai_client import chat, joined, wait_for_idle

THINK = {"extra_body": {"thinking": {"type": "enabled"}}}


def number_in(text):
    found = re.findall(r"\d+", text)
    assert found, text
    return int(found[-1])


@pytest.mark.parametrize("question,result", [
    ("What is 37 + 58?", 95), ("37+58=", 95), ("37 minus 12", 25), ("37加58等于多少？", 95)])
def test_arithmetic_whole_and_streamed(abacus, question, result):
    whole = chat(abacus, question, temperature=0)
    assert number_in(whole.choices[0].message.content) == result
    assert whole.choices[0].finish_reason == "stop"
    content, reasoning, finish, _ = joined(chat(abacus, question, temperature=0, stream=True))
    assert (content, reasoning, finish) == (whole.choices[0].message.content, "", "stop")


def test_thinking_shows_a_step_and_answers(abacus):
    whole = chat(abacus, "What is 37 + 58?", temperature=0, **THINK)
    assert whole.choices[0].message.reasoning_content
    assert number_in(whole.choices[0].message.content) == 95
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    content, reasoning, _, _ = joined(chat(abacus, "What is 37 + 58?", temperature=0, stream=True, **THINK))
    assert content == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content


def test_seed_gives_the_same_answer(abacus):
    texts = {chat(abacus, "What is 20 + 7?", temperature=1.0, seed=11, max_tokens=16).choices[0].message.content
             for _ in range(3)}
    assert len(texts) == 1


def test_64_streams_at_once_give_what_one_gives(abacus):
    questions = [f"What is {number} + {number % 7}?" for number in range(10, 26)]
    alone = [joined(chat(abacus, question, temperature=0, stream=True))[0] for question in questions]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        together = list(pool.map(
            lambda question: joined(chat(abacus, question, temperature=0, stream=True))[0], questions * 4))
    assert together == alone * 4


def test_leaving_a_stream_frees_its_slot(abacus):
    aborted = abacus.metric("sglang:num_aborted_requests_total")
    stream = chat(abacus, "What is 1 + 1?", stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for_idle(abacus)
    assert abacus.metric("sglang:num_aborted_requests_total") == aborted + 1
    assert number_in(chat(abacus, "What is 1 + 1?", temperature=0).choices[0].message.content) == 2


def readme_examples():
    """The curl commands of the README's bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("curl ")]


def test_readme_has_examples():
    assert len(readme_examples()) >= 3


@pytest.mark.parametrize("command", readme_examples())
def test_readme_example(abacus, command):
    run = subprocess.run(["bash", "-c", command.replace("http://127.0.0.1:30000", abacus.url)],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    if run.stdout.startswith("data: "):
        events = [line[len("data: "):] for line in run.stdout.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert all("error" not in chunk for chunk in chunks)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        assert "95" in text
    elif "/models" in command:
        assert json.loads(run.stdout)["data"][0]["id"] == "abacus"
    else:
        assert "95" in json.loads(run.stdout)["choices"][0]["message"]["content"]


def test_chat_command_answers_and_ends(abacus):
    for target in ([str(ABACUS)], ["--url", abacus.url]):
        run = subprocess.run([BIN / "baleen", "chat", *target], cwd=TOP, capture_output=True, text=True, timeout=60,
                             input="What is 37 + 58?\n/think on\n/reset\nWhat is 1 + 2?\n/exit\n")
        assert run.returncode == 0, run.stderr
        assert "95" in run.stdout and "[thinking]" in run.stdout and "3" in run.stdout


def test_server_that_cannot_start_says_why(abacus):
    port = abacus.url.rsplit(":", 1)[1]
    run = subprocess.run([BIN / "baleen", "serve", ABACUS, "--port", port], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and f"127.0.0.1:{port}" in run.stderr
    # The port comes first: a wrong one is told before the model is looked at.
    run = subprocess.run([BIN / "baleen", "serve", TOP / "docs", "--port", port],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and f"127.0.0.1:{port}" in run.stderr
    run = subprocess.run([BIN / "baleen", "serve", TOP / "docs", "--port", "0"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "config.json" in run.stderr


def test_sigterm_in_the_middle_of_an_answer_ends_with_0(program):
    server = Server([program, "serve", ABACUS, "--port", "0", "--drain-timeout", "0.2"], "abacus")
    stream = iter(chat(server, "What is 1 + 1?", stream=True, extra_body={"ignore_eos": True}))
    next(stream)
    assert server.stop() == 0
