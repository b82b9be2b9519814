#!/usr/bin/env python3
"""Asks a running server 1,000 questions that abacus never saw in training, and long conversations.

The operand pairs come from models/abacus/held_out.csv, the wordings from tools/abacus/phrases.json: every
wording is asked about equally often, half of the questions with reasoning. An answer is right when its
content is exactly the number.

    build/bin/baleen serve models/abacus --port 8000 &
    python tools/abacus/evaluate.py --url http://127.0.0.1:8000 --output models/abacus/RESULTS.csv
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import random
import sys
import time

import httpx

TOP = pathlib.Path(__file__).resolve().parents[2]
SEED = 4  # of the choice of questions; the model's training uses other random numbers


def held_out_pairs():
    with open(TOP / "models" / "abacus" / "held_out.csv", encoding="utf-8") as file:
        return [(int(row["low"]), int(row["high"])) for row in csv.DictReader(file)]


def wordings():
    phrases = json.loads((TOP / "tools" / "abacus" / "phrases.json").read_text(encoding="utf-8"))
    return phrases["questions"]


def question_about(wording, pair, swap, below_zero=False):
    """(text, result): sums in either order, differences below zero only where asked for."""
    low, high = pair
    a, b = (low, high) if below_zero or (wording["op"] == "+" and not swap) else (high, low)
    text = wording["text"].replace("{a}", str(a)).replace("{b}", str(b))
    return text, a + b if wording["op"] == "+" else a - b


def unseen_questions(count, seed=SEED, below_zero=False):
    """`count` different questions, every wording equally often, reasoning in every other one; with `below_zero`
    differences of the smaller number first, in all wordings but the stories."""
    rng = random.Random(seed)
    pairs = [pair for pair in held_out_pairs() if not below_zero or pair[0] < pair[1]]
    forms = [form for form in wordings()
             if not below_zero or (form["op"] == "-" and "apples" not in form["text"] and "苹果" not in form["text"])]
    chosen, questions = set(), []
    while len(questions) < count:
        wording = forms[len(questions) % len(forms)]
        text, result = question_about(wording, rng.choice(pairs), rng.random() < 0.5, below_zero)
        if text not in chosen:
            chosen.add(text)
            thinking = sum(divmod(len(questions), len(forms))) % 2 == 1
            questions.append({"wording": wording["text"], "text": text, "result": result, "thinking": thinking})
    return questions


def ask(client, model, messages, thinking, temperature=0.0):
    """The answer's content, its reasoning and the usage."""
    body = {"model": model, "messages": messages, "temperature": temperature, "max_tokens": 80,
            "thinking": {"type": "enabled" if thinking else "disabled"}}  # fmt: skip
    response = client.post("/v1/chat/completions", json=body)
    if response.status_code != 200:
        raise SystemExit(f"evaluate: HTTP {response.status_code}: {response.text}")
    answer = response.json()
    message = answer["choices"][0]["message"]
    return message.get("content") or "", message.get("reasoning_content") or "", answer["usage"]


def ask_single(client, model, question, temperature, kind="single"):
    messages = [{"role": "user", "content": question["text"]}]
    content, reasoning, usage = ask(client, model, messages, question["thinking"], temperature)
    return {"kind": kind, "wording": question["wording"], "thinking": question["thinking"],
            "question": question["text"], "expected": question["result"], "content": content,
            "reasoning": reasoning, "prompt_tokens": usage["prompt_tokens"]}  # fmt: skip


def hold_conversation(client, model, number, num_turns, temperature):
    """Turn after turn with the whole history; every turn is unseen, every fourth one reasons. The last
    one asks for the first result, which lies far outside the attention window."""
    rows, messages = [], []
    results = []
    for turn, question in enumerate(unseen_questions(num_turns, seed=1000 + number)):
        messages.append({"role": "user", "content": question["text"]})
        thinking = turn % 4 == 3
        content, reasoning, usage = ask(client, model, messages, thinking, temperature)
        rows.append({"kind": "turn", "wording": question["wording"], "thinking": thinking,
                     "question": question["text"], "expected": question["result"], "content": content,
                     "reasoning": reasoning, "prompt_tokens": usage["prompt_tokens"]})  # fmt: skip
        messages.append({"role": "assistant", "content": content})
        results.append(question["result"])
    text = "What was the first result?" if number % 2 == 0 else "第一个结果是多少？"
    messages.append({"role": "user", "content": text})
    content, reasoning, usage = ask(client, model, messages, False, temperature)
    rows.append({"kind": "recall", "wording": text, "thinking": False, "question": text,
                 "expected": results[0], "content": content, "reasoning": reasoning,
                 "prompt_tokens": usage["prompt_tokens"]})  # fmt: skip
    return rows


def is_right(row):
    return row["content"] == str(row["expected"]) and (not row["thinking"] or row["reasoning"] != "")


def share(rows):
    right = sum(map(is_right, rows))
    return f"{right}/{len(rows)} = {100 * right / len(rows):.2f} %" if rows else "none"


def report(rows):
    single = [row for row in rows if row["kind"] == "single"]
    turns = [row for row in rows if row["kind"] == "turn"]
    print(f"single questions          {share(single)}")
    print(f"  without reasoning       {share([row for row in single if not row['thinking']])}")
    print(f"  with reasoning          {share([row for row in single if row['thinking']])}")
    print(f"  in English or symbols   {share([row for row in single if row['wording'].isascii()])}")
    print(f"  in Chinese              {share([row for row in single if not row['wording'].isascii()])}")
    below = [row for row in rows if row["kind"] == "below_zero"]
    print(f"differences below zero    {share(below)}")
    print(f"  without reasoning       {share([row for row in below if not row['thinking']])}")
    print(f"  with reasoning          {share([row for row in below if row['thinking']])}")
    print(f"turns of conversations    {share(turns)}")
    for low, high in ((0, 64), (64, 300), (300, 600), (600, 1 << 30)):
        part = [row for row in turns if low < row["prompt_tokens"] <= high]
        if part:
            name = f"{low + 1}-{high}" if high < 1 << 30 else f"over {low}"
            print(f"  prompt of {name:<12}  {share(part)}")
    print(f"first result recalled     {share([row for row in rows if row['kind'] == 'recall'])}")
    for row in [row for row in rows if not is_right(row)][:20]:
        print(f"wrong: {row['question']!r} expected {row['expected']}, got {row['content']!r} "
              f"(reasoning {row['reasoning']!r}, {row['prompt_tokens']} prompt tokens)")  # fmt: skip


def write_csv(rows, path):
    fields = ["kind", "thinking", "prompt_tokens", "question", "expected", "reasoning", "content"]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*fields, "right"], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {"right": int(is_right(row)), "thinking": int(row["thinking"])})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--model", default="abacus", help="served name")
    parser.add_argument("--questions", type=int, default=1000, help="single questions")
    parser.add_argument("--below-zero", type=int, default=300, help="single questions for a difference below zero")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=40, help="questions of a conversation")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--parallel", type=int, default=8, help="requests at a time")
    parser.add_argument("--floor", type=float, default=0.95, help="exit 1 when single questions fall below")
    parser.add_argument("--output", type=pathlib.Path, help="CSV with every question")
    options = parser.parse_args()

    begin = time.monotonic()
    with httpx.Client(base_url=options.url, timeout=600) as client, \
            concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:  # fmt: skip
        single = [pool.submit(ask_single, client, options.model, question, options.temperature)
                  for question in unseen_questions(options.questions)]  # fmt: skip
        below = [pool.submit(ask_single, client, options.model, question, options.temperature, "below_zero")
                 for question in unseen_questions(options.below_zero, below_zero=True)]  # fmt: skip
        rows = [job.result() for job in single + below]
        long = [pool.submit(hold_conversation, client, options.model, number, options.turns, options.temperature)
                for number in range(options.conversations)]  # fmt: skip
        for job in long:
            rows += job.result()
    report(rows)
    print(f"{len(rows)} requests in {time.monotonic() - begin:.0f} s")
    if options.output:
        write_csv(rows, options.output)
    singles = [row for row in rows if row["kind"] == "single"]
    if singles and sum(map(is_right, singles)) < options.floor * len(singles):
        sys.exit(1)


if __name__ == "__main__":
    main()
