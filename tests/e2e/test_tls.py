"""The official client over TLS, with a certificate made for the test."""
import socket
import ssl
import subprocess

import httpx
import openai
import pytest

from conftest import BIN, start_scripted


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
                   check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def encrypted(certificate, tmp_path_factory):
    server = start_scripted(tmp_path_factory.mktemp("encrypted"), tls_certificate_file=str(certificate[0]),
                            tls_key_file=str(certificate[1]))
    assert server.url.startswith("https://")
    yield server
    assert server.stop() == 0, "".join(server.log)


@pytest.fixture(scope="module")
def trusting(certificate):
    return httpx.Client(verify=ssl.create_default_context(cafile=certificate[0]))


def test_whole_and_streamed(encrypted, trusting):
    client = openai.OpenAI(base_url=f"{encrypted.url}/v1", api_key="none", http_client=trusting, max_retries=0)
    ask = {"model": encrypted.model, "messages": [{"role": "user", "content": "greet " + "x" * 200_000}]}
    with pytest.raises(openai.BadRequestError):  # too long, but read to its end
        client.chat.completions.create(**ask)
    ask["messages"][0]["content"] = "greet"
    for _ in range(3):
        whole = client.chat.completions.create(**ask).choices[0].message.content
        chunks = client.chat.completions.create(**ask, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole == "Hello, 世界! 👩‍💻"


def test_a_client_that_leaves_ends_its_request(encrypted, trusting):
    request = {"model": encrypted.model, "stream": True, "messages": [{"role": "user", "content": "go on"}]}
    with trusting.stream("POST", f"{encrypted.url}/v1/chat/completions", json=request) as answer:
        next(answer.iter_lines())
    for _ in range(200):
        page = trusting.get(f"{encrypted.url}/server_info").json()
        if page["internal_states"][0]["num_running_reqs"] == 0:
            return
    pytest.fail("the request goes on without its client")


def test_plain_text_and_strangers_do_no_harm(encrypted, trusting):
    port = int(encrypted.url.rsplit(":", 1)[1])
    for hello in [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b""]:
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(hello)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1000):
                pass
    with pytest.raises(httpx.ConnectError):  # nobody vouches for the certificate
        httpx.get(f"{encrypted.url}/health", timeout=10)
    assert trusting.get(f"{encrypted.url}/health").json() == {"status": "ok"}


def test_files_that_cannot_be_used_are_named(certificate, tmp_path):
    scripts = tmp_path / "scripts.json"
    for cert, key, text in [("/no/such.pem", certificate[1], "/no/such.pem"), (certificate[0], certificate[0], "key"),
                            (certificate[0], "", "missing")]:
        scripts.write_text('{"tls_certificate_file": "%s", "tls_key_file": "%s"}' % (cert, key))
        run = subprocess.run([BIN / "scripted_server", scripts, "0"], capture_output=True, text=True, timeout=20,
                             cwd=BIN.parents[2])
        assert run.returncode == 1 and text in run.stderr, run.stderr
