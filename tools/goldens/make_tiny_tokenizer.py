#!/usr/bin/env python3
"""Writes src/text/testdata/tiny_tokenizer.json: a byte-level BPE vocabulary small enough to read.

Same layout as the published vocabulary: BOS, EOS and padding under 0, 1, 2, the 256 bytes under 3 to 258,
merge k under 259 + k, then the control tokens. Every character of a text is at least one token, so tests
can cut a stream where they like, and every control token of the chat format is there.
"""
import json
import pathlib

MERGES = ["Ġ t", "h e", "Ġt he", "l l", "he ll", "hell o", "i n", "e r", "Ġ a", "o n", "r e", "1 2",
          "Ċ Ċ", "Ġ Ġ", "ä ½", "ä½ ł", "å ¥", "å¥ ½", "o l", "ol d"]
FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
CONTROL = [
    "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜extracted_url｜>",
    "<｜read_url｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<|EOT|>",
]


def byte_symbols():
    """Printable stand-ins of the 256 bytes, in the order in which they get their ids."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + rank) for rank in range(len(rest))]


def main():
    vocabulary = {}
    for text in FIRST + byte_symbols() + [merge.replace(" ", "") for merge in MERGES]:
        vocabulary[text] = len(vocabulary)
    added = [(vocabulary[text], text, True) for text in FIRST]
    added += [(len(vocabulary) + rank, text, False) for rank, text in enumerate(CONTROL)]

    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}

    letters = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    words = letters + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special} for number, text, special in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split("\\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(words),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": vocabulary, "merges": MERGES},
    }
    target = pathlib.Path(__file__).parents[2] / "src/text/testdata/tiny_tokenizer.json"
    target.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
