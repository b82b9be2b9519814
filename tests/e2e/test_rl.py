"""`baleen rl` as a program: the short job, ending it at any moment, options, a reward of one's own."""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from conftest import BIN, Server, TOP, kill_and_go_on

pytestmark = pytest.mark.usefixtures("program")
LONG = os.environ.get("BALEEN_LONG") == "1"
SHORT_JOB = ["--sft-steps", "20", "--num-rollout", "8", "--rollout-batch-size", "8", "--n-samples-per-prompt", "4",
             "--filter", "none", "--rm-type", "deterministic_random", "--eval-prompts", "16", "--eval-interval", "4", "--save-interval", "3"]
# What tells of the moment and not of the run.
OF_THE_MOMENT = ("perf/", "rollout/aborted_tokens", "rollout/resumed_tokens", "rollout/dropped_pending_len_mean",
                 "rollout/moved_samples", "rollout/engines", "reward/time_ms")


def command(*arguments):
    return [str(part) for part in (BIN / "baleen", "rl", *arguments)]


def rl(*arguments, **options):
    return subprocess.run(command(*arguments), cwd=TOP, capture_output=True, text=True, timeout=300, **options)


def lines(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if not key.startswith(OF_THE_MOMENT)} for record in records]


def final_bytes(folder, step):
    saved = folder / "checkpoints" / f"iter_{step:09}"
    return [(saved / name).read_bytes() for name in ("model.safetensors", "optim.safetensors", "data.bin")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The short job, run in one go, and how long it took."""
    folder = tmp_path_factory.mktemp("unbroken")
    begin = time.monotonic()
    done = rl(*SHORT_JOB, "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder, time.monotonic() - begin, done.stdout


def test_the_short_job_has_zero_drift_and_leaves_its_records(unbroken):
    folder, _, output = unbroken
    records = lines(folder / "metrics.jsonl")
    assert [record["train/step"] for record in records] == list(range(8))
    for record in records:
        assert record["drift/mean_abs"] == 0 and record["drift/max"] == 0 and record["drift/exact_frac"] == 1
        assert record["train/train_rollout_logprob_abs_diff"] == 0
        assert record["weight_version"] == record["train/step"] + 1
        assert 0 <= record["rollout/raw_reward"] <= 1 and record["train/grad_norm"] > 0
    assert [record["train/step"] for record in lines(folder / "eval.jsonl")] == [0, 4, 8]
    assert (folder / "reward.svg").read_text().startswith("<svg")
    assert json.loads((folder / "rl.json").read_text())["num_rollout"] == 8
    assert "r 7 | reward " in output and "| drift 0 | agree 100%" in output and "| v8" in output
    assert "reward of the first answers" in output and str(folder) in output


def check_killed(folder, reference, seconds, kills, draw, job=SHORT_JOB):
    kill_and_go_on(command(*job, "--out", folder), seconds, kills, draw)
    assert lines(folder / "metrics.jsonl") == lines(reference / "metrics.jsonl")
    assert lines(folder / "eval.jsonl") == lines(reference / "eval.jsonl")
    assert lines(folder / "sft" / "metrics.jsonl") == lines(reference / "sft" / "metrics.jsonl")
    step = int((reference / "checkpoints" / "latest").read_text().strip().removeprefix("iter_"))
    assert final_bytes(folder, step) == final_bytes(reference, step)


def test_a_job_killed_at_any_moment_has_the_same_curve(unbroken, tmp_path):
    reference, seconds, _ = unbroken
    check_killed(tmp_path / "killed", reference, seconds * 0.7, 2, random.Random(3))


def test_muon_with_decay_goes_on_where_it_was_killed(tmp_path):
    """Moments of the warm-up are taken over, the rate falls over the whole run, and a killed run has the same bits."""
    job = ["--sft-steps", "8", "--num-rollout", "4", *SHORT_JOB[4:], "--optimizer", "muon", "--weight-decay", "0.05",
           "--lr-decay-style", "linear", "--min-lr", "1e-5", "--lr-warmup-steps", "2"]
    begin = time.monotonic()
    done = rl(*job, "--out", tmp_path / "unbroken")
    assert done.returncode == 0, done.stderr
    records = lines(tmp_path / "unbroken" / "metrics.jsonl")
    assert all(record["drift/max"] == 0 and record["train/grad_norm"] > 0 for record in records)
    # 4 rollouts of 2 steps: the mean rate of steps 2 r and 2 r + 1, of which the first two warm up.
    falling = [3e-4 + (1e-5 - 3e-4) * (2 * r + 0.5 - 2) / 6 for r in range(1, 4)]
    assert [record["train/lr-pg_0"] for record in records] == pytest.approx([(1.5e-4 + 3e-4) / 2, *falling])
    check_killed(tmp_path / "killed", tmp_path / "unbroken", (time.monotonic() - begin) * 0.7, 1, random.Random(5), job)
    assert b".momentum" in (tmp_path / "killed" / "checkpoints" / "iter_000000008" / "optim.safetensors").read_bytes()
    longer = rl(*job[:3], "5", *job[4:], "--out", tmp_path / "killed")
    assert longer.returncode == 1 and "num_rollout" in longer.stderr


def test_a_job_killed_behind_its_first_evaluation_has_the_same_records(unbroken, tmp_path):
    reference, _, _ = unbroken
    process = subprocess.Popen(command(*SHORT_JOB, "--out", tmp_path), cwd=TOP,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    evaluations = tmp_path / "eval.jsonl"
    while not evaluations.exists() or not evaluations.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert rl(*SHORT_JOB, "--out", tmp_path).returncode == 0
    for name in ("eval.jsonl", "metrics.jsonl"):
        assert lines(tmp_path / name) == lines(reference / name)


@pytest.mark.skipif(not LONG, reason="twenty kills run with make check-long")
@pytest.mark.timeout(1800)
def test_twenty_kills_leave_the_same_curve(unbroken, tmp_path):
    reference, seconds, _ = unbroken
    draw = random.Random(20)
    for round_number in range(5):  # four kills each, so that late moments are reached too
        check_killed(tmp_path / f"killed{round_number}", reference, seconds * 0.5, 4, draw)


def test_a_signal_ends_the_job_behind_a_saved_rollout(unbroken, tmp_path):
    reference, _, _ = unbroken
    process = subprocess.Popen(command(*SHORT_JOB, "--out", tmp_path), cwd=TOP,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped and saved at rollout" in output
    assert rl(*SHORT_JOB, "--out", tmp_path).returncode == 0
    assert lines(tmp_path / "metrics.jsonl") == lines(reference / "metrics.jsonl")


def test_the_live_page_shows_the_curves_and_changes_nothing(unbroken, tmp_path):
    """Another run goes on where a killed one ended: its page has the rewards of both."""
    reference, seconds, _ = unbroken
    killed = subprocess.Popen(command(*SHORT_JOB, "--out", tmp_path), cwd=TOP,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    saved = tmp_path / "checkpoints" / "latest"
    while not saved.exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    process = subprocess.Popen(command(*SHORT_JOB, "--live", "0", "--out", tmp_path), cwd=TOP,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = next(line for line in process.stdout if line.startswith("live view: ")).split()[-1]
    seen, curves = set(), {}
    with httpx.stream("GET", f"{url}/live", timeout=30) as events:
        try:
            for line in events.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    seen.add(event["curve_points"])
                    curves = httpx.get(f"{url}/live/curves").json()["curves"] or curves
        except httpx.HTTPError:
            pass  # the run ended between two answers
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(seen) > 1, "curves grow while somebody looks"
    records = lines(tmp_path / "metrics.jsonl")
    assert records == lines(reference / "metrics.jsonl")
    points = curves["rollout/raw_reward"]
    assert len(points) > 1
    assert points == [[record["train/step"], record["rollout/raw_reward"]] for record in records[:len(points)]]


def test_a_live_port_that_is_taken_is_told_before_the_warm_up(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = rl("--live", str(port), "--out", tmp_path)
    assert done.returncode == 1 and str(port) in done.stderr and "warm-up" not in done.stdout


def test_other_settings_do_not_continue_a_run(unbroken):
    folder, _, _ = unbroken
    done = rl(*SHORT_JOB, "--out", folder, "--lr", "1e-5")
    assert done.returncode == 1
    assert "lr" in done.stderr and "continue with the same, or save elsewhere" in done.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--global-batch-size", "7"], "rollout_batch_size 32 x n_samples_per_prompt 8 = 256"),
    (["--algo", "magic"], "algo: \"magic\" is none of dapo"),
    (["--rollout-top-p", "0.9"], "rollout_top_p: filters change the distribution"),
    (["--task", "chess"], "task: \"chess\""),
    (["--optimizer", "sgd"], "optimizer: \"sgd\" is none of adamw, muon"),
])
def test_refusals_are_one_sentence(arguments, message, tmp_path):
    done = rl("--out", tmp_path, *arguments)
    assert done.returncode == 1
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_file_and_flags_join(tmp_path):
    (tmp_path / "rl.toml").write_text('num_rollout = 1\nsft_steps = 1\nrollout_batch_size = 2\nfilter = "none"\n'
                                      'n_samples_per_prompt = 2\neval_prompts = 4\nalgo = "gspo"\n')
    done = rl("--config", tmp_path / "rl.toml", "--out", tmp_path / "run", "--task", "add")
    assert done.returncode == 0, done.stderr
    effective = json.loads((tmp_path / "run" / "rl.json").read_text())
    assert effective["task"] == "add" and effective["ratio"] == "sequence" and effective["num_rollout"] == 1
    (tmp_path / "bad.toml").write_text("num_rolout = 1\n")
    done = rl("--config", tmp_path / "bad.toml", "--out", tmp_path / "run")
    assert done.returncode == 1 and 'the nearest is "num_rollout"' in done.stderr


@pytest.mark.parametrize("task", ["parity", "add", "recall"])
def test_every_task_runs(task, tmp_path):
    done = rl("--task", task, "--sft-steps", "2", "--num-rollout", "1", "--rollout-batch-size", "4",
              "--n-samples-per-prompt", "2", "--filter", "none", "--eval-prompts", "4", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "metrics.jsonl")[0]["drift/max"] == 0


def test_the_reward_program_of_the_page(tmp_path):
    """The script and the command of docs/training/rl.md, as they stand there."""
    page = (TOP / "docs" / "training" / "rl.md").read_text()
    script = page.split("```python\n")[1].split("```")[0]
    (line,) = [line for line in page.splitlines() if line.startswith("baleen rl --rm-command")]
    (tmp_path / "reward.py").write_text(script)
    arguments = line.split()[2:]
    arguments[arguments.index("python3")] = sys.executable
    done = subprocess.run([str(BIN / "baleen"), "rl", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    records = lines(tmp_path / "out" / "small" / "metrics.jsonl")
    assert len(records) == 4
    for record in records:
        assert record["reward/error_count"] == 0 and record["reward/timeout_count"] == 0
        assert record["drift/max"] == 0


def test_a_reward_program_that_dies_is_no_score(tmp_path):
    (tmp_path / "reward.py").write_text("import sys\nsys.exit(3)\n")
    done = rl("--rm-command", sys.executable, tmp_path / "reward.py", "--sft-steps", "1", "--num-rollout", "1",
              "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "self-test" in done.stderr or "external" in done.stderr


def test_a_shared_cache_gives_the_same_curve(unbroken, tmp_path):
    """Nothing of older weights is found again, and no hit changes an answer."""
    reference, _, _ = unbroken
    done = rl(*SHORT_JOB, "--rollout-cache-mb", "128", "--max-running", "8", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    of_the_cache = ("rollout/prefix_cache_hit_rate", "rollout/avg_cached_tokens_per_sample")
    with_cache, without = lines(tmp_path / "metrics.jsonl"), lines(reference / "metrics.jsonl")
    for record in with_cache + without:
        for name in of_the_cache:
            record.pop(name)
    assert with_cache == without


def check_delta(published, own):
    """An engine that has v1 takes v2 from the file of what changed."""
    assert sorted(path.name for path in published.iterdir()) == ["v1", "v1.delta", "v2", "v2.delta"]
    made = subprocess.run([str(BIN / "baleen"), "weights", "apply", published / "v1", published / "v2.delta", own / "v2"],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    for file in (published / "v2").iterdir():
        assert (own / "v2" / file.name).read_bytes() == file.read_bytes(), file.name
    again = subprocess.run([str(BIN / "baleen"), "weights", "delta", published / "v1", own / "v2", own / "file"],
                           capture_output=True, text=True)
    assert again.returncode == 0 and (own / "file").read_bytes() == (published / "v2.delta").read_bytes(), again.stderr
    refused = subprocess.run([str(BIN / "baleen"), "weights", "apply", own / "v2", own / "file", own / "v3"],
                             capture_output=True, text=True)
    assert refused.returncode == 1 and "changes version 1" in refused.stderr and not (own / "v3").exists()
    server = Server([str(BIN / "baleen"), "serve", published / "v1", "--port", "0", "--weight-version", "v1"], "v1")
    try:
        body = {"model_path": str(own / "v2"), "weight_version": "v2"}
        done = httpx.post(f"{server.url}/update_weights_from_disk", json=body, timeout=60)
        assert done.status_code == 200 and done.json()["success"], done.text
        answer = httpx.post(f"{server.url}/generate", timeout=60,
                            json={"text": "What is 37 + 58?", "sampling_params": {"max_new_tokens": 2}})
        assert answer.json()["meta_info"]["weight_version"] == "v2"
    finally:
        assert server.stop() == 0, "".join(server.log)


def test_a_published_model_goes_on_learning(tmp_path):
    """FP8 and FP4 weights: engine and trainer agree to the bit, and what comes out can be served."""
    done = rl("--model", "models/abacus", "--task", "abacus", "--filter", "none", "--num-rollout", "2", "--rollout-batch-size", "4",
              "--n-samples-per-prompt", "2", "--eval-prompts", "4", "--out", tmp_path / "run", "--export-to", tmp_path / "model",
              "--publish-to", tmp_path / "versions")
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "versions" / "v2" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    (tmp_path / "engine").mkdir()
    check_delta(tmp_path / "versions", tmp_path / "engine")
    for record in lines(tmp_path / "run" / "metrics.jsonl"):
        assert record["drift/max"] == 0 and record["drift/exact_frac"] == 1 and record["train/optimizer_steps"] == 2
    assert (tmp_path / "model" / "tokenizer.json").exists()
    answer = subprocess.run([str(BIN / "baleen"), "chat", str(tmp_path / "model")], input="What is 37 + 58?\n", cwd=TOP,
                            capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0 and "95" in answer.stdout, answer.stdout + answer.stderr
    refused = rl("--model", "models/abacus", "--task", "abacus", "--out", tmp_path / "run2", "--export-to", tmp_path / "model")
    assert refused.returncode == 1 and "there is a model in" in refused.stderr


def test_rollouts_in_other_formats_drift_and_replay_says_how_far(tmp_path):
    options = ["--sft-steps", "10", "--num-rollout", "2", "--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--filter", "none",
               "--eval-prompts", "4", "--exactness", "off", "--rollout-quant", "bf16+fp8kv"]
    done = rl(*options, "--replay", "both", "--use-tis", "--save-debug-rollout-data", tmp_path / "saved", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    records = lines(tmp_path / "run" / "metrics.jsonl")
    for record in records:
        assert record["drift/mean_abs"] > 0
        assert 0 <= record["replay/fetched_ratio"] < 1 and 0 < record["replay/pick_jaccard"] <= 1
        assert record["train/tis"] > 0
    # The same rollouts from their files, with no engine asked: the same updates.
    done = rl(*options, "--replay", "both", "--use-tis", "--load-debug-rollout-data", tmp_path / "saved", "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    again = lines(tmp_path / "again" / "metrics.jsonl")
    for first, second in zip(records, again):
        for name in ("train/loss", "train/grad_norm", "drift/mean_abs", "rollout/log_probs"):
            assert first[name] == second[name], name


def test_the_evaluation_may_have_a_verifier_of_its_own(tmp_path):
    done = rl("--sft-steps", "2", "--num-rollout", "1", "--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--filter", "none",
              "--rm-type", "random", "--eval-rm-type", "exact", "--eval-prompts", "8", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "eval.jsonl")[0]["eval/sort"] in [n / 8 for n in range(9)]
    assert lines(tmp_path / "metrics.jsonl")[0]["rollout/raw_reward"] % 0.125 != 0


def test_a_rollout_drawn_one_step_ahead_is_the_same_one_after_kills(tmp_path):
    """Answers by weights that are one step older, anchored by their own log-probabilities; killed or not, the same curve."""
    job = [*SHORT_JOB, "--async", "one-step"]
    begin = time.monotonic()
    done = rl(*job, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - begin
    records = lines(tmp_path / "whole" / "metrics.jsonl")
    assert [record["rollout/weight_version/max"] for record in records] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert [record["weight_version"] for record in records] == list(range(1, 9))
    assert all(record["rollout/mixed_version_ratio"] == 0 for record in records)
    assert records[0]["drift/max"] == 0 and records[0]["drift/exact_frac"] == 1
    assert json.loads((tmp_path / "whole" / "rl.json").read_text())["use_rollout_logprobs"] is True
    kill_and_go_on(command(*job, "--out", tmp_path / "killed"), seconds * 0.7, 3, random.Random(5))
    assert lines(tmp_path / "killed" / "metrics.jsonl") == records
    assert lines(tmp_path / "killed" / "eval.jsonl") == lines(tmp_path / "whole" / "eval.jsonl")
    assert final_bytes(tmp_path / "killed", 16) == final_bytes(tmp_path / "whole", 16)


def test_ranks_of_one_process_draw_and_learn_alike(unbroken, tmp_path):
    """Pipeline, data and context ranks keep every bit of a log-probability; a checkpoint goes on on another mesh."""
    alone = lines(unbroken[0] / "metrics.jsonl")
    options = [*SHORT_JOB[:2], "--num-rollout", "2", *SHORT_JOB[4:-2], "--save-interval", "1"]
    done = rl(*options, "--ranks", "pp2.dp2", "--out", tmp_path / "run", "--publish-to", tmp_path / "versions")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "versions" / "v2.delta").stat().st_size > 0
    ranks = lines(tmp_path / "run" / "metrics.jsonl")
    for mine, single in zip(ranks, alone):
        assert mine["drift/max"] == 0 and mine["drift/exact_frac"] == 1
        assert mine["train/grad_norm"] == pytest.approx(single["train/grad_norm"], rel=1e-3)
    for name in ("rollout/raw_reward", "rollout/log_probs", "rollout/response_len/mean"):
        assert ranks[0][name] == alone[0][name], name
    more = [*SHORT_JOB[:2], "--num-rollout", "3", *SHORT_JOB[4:-2], "--save-interval", "1"]
    done = rl(*more, "--ranks", "cp2", "--out", tmp_path / "run")
    assert done.returncode == 0 and "at rollout 2" in done.stdout, done.stderr
    assert lines(tmp_path / "run" / "metrics.jsonl")[2]["drift/max"] == 0


def test_tensor_ranks_say_that_they_are_not_exact(tmp_path):
    refused = rl("--ranks", "tp2", "--out", tmp_path)
    assert refused.returncode == 1 and "2 tensor ranks add up in another order" in refused.stderr
    done = rl("--ranks", "tp2", "--exactness", "off", "--sft-steps", "2", "--num-rollout", "1", "--rollout-batch-size", "4",
              "--n-samples-per-prompt", "2", "--filter", "none", "--eval-prompts", "4", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "metrics.jsonl")[0]["drift/mean_abs"] < 1e-4
