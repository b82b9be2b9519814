"""Requests made from the served description of the API, valid and not: no answer is a fault of the server, every
status, content type and body is described, what the description forbids is refused.

BALEEN_LONG=1 (make check-long) makes more of them.
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import TOP, start_scripted

LONG = bool(os.environ.get("BALEEN_LONG"))
NUM_EXAMPLES = 100 if LONG else 5
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance"]
# A stream without end; the others stop the model for everybody else: weight_control_test.cpp is about them.
EXCLUDED = ["/live", "/pause_generation", "/release_memory_occupation", "/resume_memory_occupation"]


def with_model(document, name):
    """The description with the model's name in it: nearly all made-up names would only be told that there is no such
    model."""
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in properties:
            may_be_null = "null" in properties["model"]["type"]
            properties["model"] = {"enum": [name, None] if may_be_null else [name]}
    return document


@pytest.mark.timeout(3600 if LONG else 120)
def test_described_api(tmp_path):
    server = start_scripted(tmp_path, model="described", step_delay_us=0, max_context=512,
                            scripts=[{"prompt_contains": "", "text": "fine"}])
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(with_model(json.loads((TOP / "docs" / "serving" / "openapi.json").read_text()),
                                               server.model)))
    command = [pathlib.Path(sys.executable).parent / "st", "run", described, "--url", server.url, "--checks", ",".join(CHECKS),
               "--max-examples", NUM_EXAMPLES, "--seed", 1, "--phases", "coverage,fuzzing" if LONG else "fuzzing", "--continue-on-failure",
               "--generation-database", "none", "--no-color", "--suppress-health-check", "all"]
    for path in EXCLUDED:
        command += ["--exclude-path", path]
    done = subprocess.run([str(part) for part in command], cwd=tmp_path, capture_output=True, text=True)
    report = done.stdout + done.stderr
    if results := os.environ.get("BALEEN_RESULTS"):
        file = TOP / results
        file.with_name(file.name.replace("structured.csv", "schemathesis.txt")).write_text(report)
    assert done.returncode == 0, report[-20000:]
    assert server.stop() == 0, "".join(server.log)
