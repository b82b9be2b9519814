"""The commands that work on folders: synth, convert, plan and score in a row, and what they refuse."""
import json
import os
import socket
import struct
import subprocess

import numpy
import pytest

from conftest import ABACUS, BIN

PROGRAM = BIN / "baleen"
LONG = bool(os.environ.get("BALEEN_LONG"))
pytestmark = pytest.mark.usefixtures("program")
IDS = [[1, 5, 3, 9, 2, 7, 8, 4, 6, 10, 11, 3, 5, 7, 2, 9, 30], [4]]


def baleen(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=100)


def good(*arguments):
    done = baleen(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments):
    """The error line of a command that must fail."""
    done = baleen(*arguments)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("baleen: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def tensors(file):
    """All float tensors of a safetensors file by name."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    types = {"F64": "<f8", "F32": "<f4"}
    return {name: numpy.frombuffer(data[8 + length:][slice(*entry["data_offsets"])], types[entry["dtype"]])
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] in types}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synth") / "tiny"
    good("synth", folder, "--config", "tiny", "--seed", 3)
    return folder


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    file = tmp_path_factory.mktemp("ids") / "ids.json"
    file.write_text(json.dumps({"sequences": IDS}))
    return file


@pytest.mark.parametrize("weights", ["fp8", "bf16"])
def test_converted_model_scores_the_same_whole_and_cut(published, ids, tmp_path, weights):
    folder = tmp_path / weights
    good("convert", published, folder, "--format", weights, *(["--allow-lossy"] if weights == "fp8" else []))
    runs = {}
    for name, flags in (("whole", []), ("cut", ["--chunk", 7]), ("stepwise", ["--prefill", 5])):
        file = tmp_path / f"{name}.safetensors"
        good("score", folder, "--input", ids, "--output", file, "--dtype", "double", "--numerics", "plain", *flags)
        runs[name] = tensors(file)
    assert runs["whole"]
    for name in ("cut", "stepwise"):
        assert runs[name].keys() == runs["whole"].keys()
        for key, value in runs["whole"].items():
            assert numpy.isfinite(value).all(), key
            assert abs(value - runs[name][key]).max(initial=0) <= 1e-10, (name, key)


def test_plan_counts_the_written_weights(published):
    weights = json.loads(good("plan", "--config", published, "--json"))["weights"]["by_type"]
    stored = {}
    for file in published.glob("*.safetensors"):
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                stored[entry["dtype"]] = stored.get(entry["dtype"], 0) + 1
    assert {kind: row["tensors"] for kind, row in weights.items()} == stored


def test_plan_begins_with_words_for_a_newcomer():
    words = good("plan", "--config", "flash").split("weights\n")[0]
    assert "The weights take" in words and "--memory-gib" in words
    words = good("plan", "--config", "flash", "--ranks", 4, "--memory-gib", 141).split("weights\n")[0]
    assert "each of 4 ranks holds" in words and "whole contexts" in words and "requests at a time" in words
    assert "--ranks 4 would do" in refused("plan", "--config", "flash", "--memory-gib", 60)
    assert "no number of ranks" in refused("plan", "--config", "flash", "--memory-gib", 0.01)


# Least values of the flags that count something.
COUNTS = {
    "serve": {"--threads": 1, "--port": 0, "--context-length": 0, "--max-running-requests": 1,
              "--max-queued-requests": 0, "--chunked-prefill-size": 1, "--max-step-tokens": 1, "--io-threads": 1,
              "--handler-threads": 1, "--max-body-mib": 1, "--prefill-max-requests": 1,
              "--priority-scheduling-preemption-threshold": -1},
    "chat": {"--threads": 1},
    "generate": {"--threads": 1, "--max-context": 0, "--max-running": 1, "--max-queued": 0,
                 "--max-prefill-chunk": 1, "--max-step-tokens": 1},
    "bench": {"--threads": 1, "--streams": 1, "--prompt-tokens": 1, "--new-tokens": 2, "--repeats": 1},
}
FRACTIONS = [(["plan"], "--swa-full-tokens-ratio"), (["plan"], "--checkpoint-memory-fraction"),
             (["plan"], "--memory-gib"), (["serve", "nowhere"], "--drain-timeout"),
             (["serve", "nowhere"], "--queue-timeout"), (["serve", "nowhere"], "--request-timeout"),
             (["serve", "nowhere"], "--decode-interval-ms"),
             (["bench", "engine", "nowhere"], "--decode-interval-ms"),
             (["synth", "nowhere"], "--max-shard-gb"),
             (["convert", "nowhere", "target", "--format", "bf16"], "--max-shard-gb")]


BAD_LINES = [
    ([], "subcommand"),
    (["serve"], "model"),
    (["bench"], "model"),
    (["bench", "engine"], "model"),
    (["bench", "serve", "--requests", 0], "--requests"),
    (["bench", "engine", "nowhere", "--traffic", "rush"], "--traffic"),
    (["bench", "engine", "nowhere", "--synthetic", "nothing"], "nothing"),
    (["serve", "nowhere"], "nowhere"),
    (["serve", "nowhere", "--threads", 0], "--threads"),
    *[([command, "nowhere", flag, value], flag)
      for command, flags in COUNTS.items() for flag, low in flags.items() for value in (low - 1,)],
    *[([*command, flag, value], flag) for command, flag in FRACTIONS for value in (-0.1, "nan")],
    *[(["serve", "nowhere", "--port", value], "--port") for value in (65536, "x", "nan", "")],
    *[(["plan", "--memory-gib", value], "--memory-gib") for value in ("inf", "1e12", "x", "")],
    (["serve", "nowhere", "--host", ""], "host"),
    (["serve", "nowhere", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    (["serve", "nowhere", "--api-key", "a b"], "api-key"),
    (["serve", "nowhere", "--log-level", "loud"], "--log-level"),
    *[([command, "nowhere", "--numerics", "exact"], "--numerics") for command in COUNTS],
    *[([command, "nowhere", "--chat-profile", "v3"], "--chat-profile") for command in COUNTS],
    (["generate", "nowhere", "--prompt", "x", "--thinking"], "--thinking"),
    (["plan", "--config", "nowhere"], "nowhere"),
    (["plan", "--ranks", 0], "--ranks"),
    (["plan", "--chunk-tokens", 0], "--chunk-tokens"),
    (["version", "surplus"], "surplus"),
    (["bench"], "model"),
    (["bench", "kernels", "--replays", 0], "--replays"),
    (["bench", "kernels"], "CUDA"),  # no build of this host's tests has both kernels and a device
]


# Each is a start of the program, which costs more than what it does: a third of them, all with make check-long.
@pytest.mark.parametrize("arguments, named", BAD_LINES if LONG else BAD_LINES[::3])
def test_bad_command_line_ends_with_one_line_and_code_1(arguments, named):
    assert named in refused(*arguments)


@pytest.mark.parametrize("text, named", [
    ("", "not JSON"), ("{}", "sequences"), ('{"sequences": [[1]], "temperature": 1}', "temperature"),
    ('{"sequence": [[1]]}', "sequence"), ("[[1]]", "sequences"), ('{"sequences": [["a"]]}', "integers"),
    ('{"sequences": [[1, 999999999]]}', "999999999")])
def test_score_refuses_bad_input_and_leaves_no_output(published, tmp_path, text, named):
    file = tmp_path / "ids.json"
    file.write_text(text)
    assert named in refused("score", published, "--input", file, "--output", tmp_path / "out.safetensors")
    assert os.listdir(tmp_path) == ["ids.json"]


def test_convert_names_a_truncated_file_and_leaves_no_folder(published, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in published.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    shard = next(iter(sorted(broken.glob("*.safetensors"))))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    assert shard.name in refused("convert", broken, tmp_path / "target", "--format", "bf16")
    assert not (tmp_path / "target").exists() or not any((tmp_path / "target").glob("*.safetensors"))


def test_synth_and_convert_never_write_over_a_model(published):
    assert str(published) in refused("synth", published, "--config", "tiny")
    assert str(ABACUS) in refused("convert", published, ABACUS, "--format", "bf16")


def verdicts(output):
    """{what: (verdict, text)} of doctor's lines."""
    return {line.split()[1]: (line.split()[0], line) for line in output.splitlines()}


def test_doctor_looks_before_serving(tmp_path):
    found = verdicts(good("doctor", ABACUS, "--port", 0))
    assert {what: verdict for what, (verdict, _) in found.items() if what not in ("files", "gpu")} == dict.fromkeys(
        ["program", "processor", "config", "weights", "cache", "tokenizer", "format", "address", "next"], "ok")
    assert "MiB keeps up to" in found["cache"][1] and f"baleen serve {ABACUS}" in found["next"][1]
    assert "chat profile v4" in found["format"][1]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((ABACUS / "config.json").read_bytes())
    done = baleen("doctor", broken, "--port", 0)
    found = verdicts(done.stdout)
    assert done.returncode == 1 and "doctor" in done.stderr
    assert found["config"][0] == "ok" and found["weights"][0] == "fail" and found["tokenizer"][0] == "fail"
    assert "next" not in found


DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* out) { return *out = 13000, 0; }
int cuDeviceGetCount(int* out) { return *out = 1, 0; }
int cuDeviceGet(int* out, int number) { return *out = number, 0; }
int cuDeviceGetName(char* out, int size, int device) { return strncpy(out, "Made up", size), 0; }
int cuDeviceTotalMem_v2(size_t* out, int device) { return *out = 1u << 30, 0; }
int cuDeviceGetAttribute(int* out, int what, int device) { return *out = what == 75 ? 9 : 0, 0; }
int cuDevicePrimaryCtxRetain(void** out, int device) { return *out = out, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuMemGetInfo_v2(size_t* unused, size_t* all) { return *unused = 1u << 20, *all = 1u << 30, 0; }
"""


def test_doctor_looks_at_gpus_through_the_driver(tmp_path):
    """A library with the driver's name is loaded and asked, also by a program without CUDA."""
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True)

    def doctor(*arguments):
        done = subprocess.run([PROGRAM, "doctor", ABACUS, "--port", "0", *arguments], capture_output=True, text=True,
                              env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
        return done.returncode, [line for line in done.stdout.splitlines() if line.split()[1] == "gpu"]
    code, lines = doctor()
    assert code == 0 and lines[0].startswith("warn")
    assert "cuda:0 Made up, 1.0 GiB (0.0 free), compute capability 9.0" in lines[0] and "taken by other programs" in lines[0]
    code, lines = doctor("--device", "cuda")
    assert code == 1 and lines[0].startswith("fail") and "the weights need" in lines[0]
    code, lines = doctor("--device", "cuda:1")
    assert code == 1 and any("cuda:1 is not there" in line for line in lines)


def test_doctor_finds_an_address_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = baleen("doctor", "--port", taken.getsockname()[1])
    assert done.returncode == 1 and verdicts(done.stdout)["address"][0] == "fail"
