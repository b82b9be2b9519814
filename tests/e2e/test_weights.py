"""Weights and memory of the running program: another checkpoint and back, released and had again; recorded choices."""
import base64
import concurrent.futures
import subprocess

import httpx
import numpy
import pytest
import safetensors.numpy

from conftest import ABACUS, Server

PROMPT = "What is 37 + 58? " * 12


@pytest.fixture(scope="module")
def random_weights(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "random"
    subprocess.run([program, "synth", folder, "--config", ABACUS, "--tokenizer", ABACUS, "--seed", "3"], check=True,
                   capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(program):
    server = Server([program, "serve", ABACUS, "--port", "0", "--record-choices", "--drain-timeout", "5",
                     "--weight-version", "shipped"], "abacus")
    yield server
    assert server.stop() == 0, "".join(server.log)


def post(server, path, body=None):
    answer = httpx.post(f"{server.url}{path}", json=body if body is not None else {}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def generate(server, max_new=12, **fields):
    return post(server, "/generate", {"text": PROMPT, "sampling_params": {
        "max_new_tokens": max_new, "temperature": 0, "ignore_eos": True}, **fields})


def test_other_weights_and_back(server, random_weights):
    shipped = generate(server)
    assert shipped["meta_info"]["weight_version"] == "shipped"
    again = generate(server)
    assert again["output_ids"] == shipped["output_ids"] and again["meta_info"]["cached_tokens"] > 0
    done = post(server, "/update_weights_from_disk", {"model_path": str(random_weights), "weight_version": "random"})
    assert done["success"]
    other = generate(server)
    assert other["output_ids"] != shipped["output_ids"]
    assert other["meta_info"]["weight_version"] == "random" and other["meta_info"]["cached_tokens"] == 0
    refused = httpx.post(f"{server.url}/update_weights_from_disk", json={"model_path": "/nowhere"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "model_path"
    assert generate(server)["output_ids"] == other["output_ids"]
    post(server, "/update_weights_from_disk", {"model_path": str(ABACUS), "weight_version": "shipped"})
    back = generate(server)
    assert back["output_ids"] == shipped["output_ids"] and back["meta_info"]["cached_tokens"] == 0


def test_memory_is_given_back(server):
    status = f"/proc/{server.process.pid}/status"

    def memory_mb(name):
        with open(status) as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))
    before = generate(server)
    # Pages that nobody has touched take addresses alone; these small weights come from a heap that keeps what it has.
    size = memory_mb("VmSize")
    post(server, "/release_memory_occupation", {"tags": ["kv_cache"]})
    assert memory_mb("VmSize") < size - 100
    post(server, "/release_memory_occupation")
    assert httpx.get(f"{server.url}/server_info").json()["released_memory"] == ["kv_cache", "weights"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(generate, server)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(timeout=0.3)
        post(server, "/resume_memory_occupation", {"tags": ["weights"]})
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(timeout=0.3)
        post(server, "/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert waiting.result(timeout=30)["output_ids"] == before["output_ids"]


def test_fifty_cycles_of_sleep_leave_the_memory_flat(server):
    """A copy of the weights is 14 MB, the cache more than 100: one of either left behind by each cycle would show."""
    def resident_mb():
        with open(f"/proc/{server.process.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))
    before = generate(server)
    resident = []
    for _ in range(50):
        post(server, "/release_memory_occupation")
        post(server, "/resume_memory_occupation")
        assert generate(server)["output_ids"] == before["output_ids"]
        resident.append(resident_mb())
    assert max(resident[10:]) - min(resident[5:10]) < 40, resident


def test_choices_of_every_token(server):
    post(server, "/flush_cache")
    facts = httpx.get(f"{server.url}/server_info").json()["recorded_choices"]
    wanted = {"return_routed_experts": True, "return_indexer_topk": True}
    cold = generate(server, max_new=20, **wanted)
    warm = generate(server, max_new=20, **wanted)
    assert warm["meta_info"]["cached_tokens"] > 0
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": PROMPT}).json()["tokens"] + cold["output_ids"]
    num_run, num_layers, per_token = len(ids) - 1, 5, facts["experts_per_token"]

    def numbers(answer, name, *shape):
        return numpy.frombuffer(base64.b64decode(answer["meta_info"][name]), "<i4").reshape(num_run, *shape)
    experts = numbers(cold, "routed_experts", num_layers, per_token)
    # The first layer chooses by token id: from the table in the checkpoint, read without the program.
    tensors = {}
    for file in ABACUS.glob("*.safetensors"):
        with safetensors.safe_open(file, "numpy") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys() if name.endswith("tid2eid")}
    (table,) = [value for name, value in tensors.items() if ".0." in name]
    assert (experts[:, 0] == numpy.sort(table[ids[:-1]], axis=1)).all()
    assert (experts >= 0).all() and (experts < facts["num_experts"]).all()
    assert (numpy.diff(experts, axis=2) > 0).all()
    picks = numbers(cold, "indexer_topk", len(facts["picking_layers"]), facts["index_topk"])
    visible = (numpy.arange(num_run) + 1) // facts["entry_tokens"]
    assert ((picks >= 0).sum(axis=2) == numpy.minimum(visible, facts["index_topk"])[:, None]).all()
    assert (picks < visible[:, None, None]).all()
    # A prefix from the cache brings the choices of the request that ran it.
    assert (numbers(warm, "routed_experts", num_layers, per_token) == experts).all()
    assert (numbers(warm, "indexer_topk", len(facts["picking_layers"]), facts["index_topk"]) == picks).all()
    tail = generate(server, max_new=20, routed_experts_start_len=7, return_routed_experts=True)
    assert base64.b64decode(tail["meta_info"]["routed_experts"]) == experts[7:].astype("<i4").tobytes()


def test_pages_on_the_metrics_page(server):
    post(server, "/generate", {"text": PROMPT * 4, "sampling_params": {"max_new_tokens": 2}})
    assert server.metric("sglang:kv_evictable_tokens") > 0
    assert server.metric("sglang:kv_used_tokens") == 0, "nothing runs"
    post(server, "/flush_cache")
    assert server.metric("sglang:kv_evictable_tokens") == 0 and server.metric("sglang:kv_used_tokens") == 0
    assert server.metric("sglang:kv_available_tokens") == server.metric("sglang:max_total_num_tokens")
    assert server.metric("sglang:swa_available_tokens") == server.metric("sglang:max_total_num_tokens_swa")
    pages = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]["pages"]
    assert pages["free_full"] == pages["full"] and pages["free_swa"] == pages["swa"]
    assert server.metric("baleen:checkpoint_captures_total") > 0
