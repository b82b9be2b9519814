#!/usr/bin/env python3
"""Makes models/abacus/tokenizer.json: a small byte-level BPE in the form of the published V4 tokenizer.

Id layout as in the published vocabulary: 0-2 are BOS, EOS and pad, 3-258 the single bytes in GPT-2 byte
order, then merge number k has id 259 + k, and the other control tokens take the last ids. Digits never
merge, so a number is read and written digit by digit.

    python tools/abacus/make_tokenizer.py --output models/abacus
"""

import argparse
import json
import pathlib
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
CONTROL = [
    "<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<dsml:", "</dsml:",
    "<｜extracted_url｜>", "<｜read_url｜>",
]  # fmt: skip
VOCAB_SIZE = 512
# The published chain of four steps; the last one only maps bytes to their visible letters.
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]


def byte_letters():
    """The 256 byte symbols in GPT-2 order: visible bytes stand for themselves, the rest are moved up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return [chr(b) for b in visible] + [chr(256 + i) for i in range(len(hidden))]


def corpus(phrases):
    """Every text the model reads or writes, each as often as its weight says; numbers become one digit."""

    def bare(text):
        return re.sub(r"\{[ab]\}|[0-9]+", "7", text)

    for group in ("questions", "follow_ups", "recalls", "systems"):
        for phrase in phrases[group]:
            for _ in range(4 * phrase["weight"]):
                yield bare(phrase["text"])
    for talk in phrases["small_talk"]:
        for text in talk["texts"]:
            yield from [bare(text)] * 2
        yield from [bare(talk["answer"])] * 16
    yield from [phrases["effort_max"]] * 2


def chain():
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def learn_merges(texts, count):
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = chain()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, min_frequency=2, show_progress=False, initial_alphabet=byte_letters()
    )
    learner.train_from_iterator(texts, trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [tuple(pair) for pair in merges[:count]]


def build(phrases):
    num_merges = VOCAB_SIZE - 3 - 256 - len(CONTROL)
    merges = learn_merges(list(corpus(phrases)), num_merges)
    if len(merges) != num_merges:
        raise SystemExit(f"the corpus gives {len(merges)} merges, {num_merges} are wanted")
    letters = byte_letters()
    vocab = {letter: 3 + i for i, letter in enumerate(letters)}
    vocab |= {left + right: 259 + k for k, (left, right) in enumerate(merges)}
    if len(vocab) != 256 + num_merges:
        raise SystemExit("two merges give the same token")
    if any(re.search("[0-9].", token) or re.search(".[0-9]", token) for token in vocab):
        raise SystemExit("a merge holds a digit")

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = chain()
    tokenizer.decoder = decoders.ByteLevel()
    text = json.loads(tokenizer.to_str())
    # Written out by hand: the library would number added tokens in the order in which they are added.
    first_control = VOCAB_SIZE - len(CONTROL)
    ids = {BOS: 0, EOS: 1, PAD: 2} | {token: first_control + i for i, token in enumerate(CONTROL)}
    text["added_tokens"] = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": number <= 2}
        for token, number in ids.items()
    ]  # fmt: skip
    text["model"]["vocab"] = ids | text["model"]["vocab"]
    text["model"]["vocab"] = dict(sorted(text["model"]["vocab"].items(), key=lambda item: item[1]))
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of the model")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    phrases = json.loads((HERE / "phrases.json").read_text(encoding="utf-8"))
    tokenizer = build(phrases)

    def write(name, value):
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")

    write("tokenizer.json", tokenizer)

    def added(content):
        return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True,
                "rstrip": False, "single_word": False}  # fmt: skip

    write("tokenizer_config.json", {
        "add_bos_token": False, "add_eos_token": False, "bos_token": added(BOS),
        "clean_up_tokenization_spaces": False, "eos_token": added(EOS), "legacy": True,
        "model_max_length": 4096, "pad_token": added(EOS), "sp_model_kwargs": {}, "unk_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    })  # fmt: skip
    write("generation_config.json", {
        "bos_token_id": 0, "chat_profile": "v4", "do_sample": True, "eos_token_id": 1,
        "temperature": 1.0, "top_p": 1.0,
    })  # fmt: skip

    check = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for sample in ("What is 37 + 58?", "37加58等于多少？", "12-7=5, 4-1-1=2", f"{BOS}<｜User｜>hello<｜Assistant｜></think>"):
        encoded = check.encode(sample, add_special_tokens=False)
        assert check.decode(encoded.ids, skip_special_tokens=False) == sample, sample
        print(len(encoded.ids), encoded.tokens)
    texts = [phrases["effort_max"], *(talk["answer"] for talk in phrases["small_talk"])]
    print("ids per text:", [len(check.encode(text).ids) for text in texts])


if __name__ == "__main__":
    main()
