"""The short form of the soak; the long one is part of make check-long."""
import os
import subprocess
import sys

import pytest

from conftest import BIN, TOP


@pytest.mark.usefixtures("program")
def test_short_soak():
    done = subprocess.run([sys.executable, TOP / "tests" / "soak" / "soak.py", "--seconds", "4", "--clients", "16",
                           "--streams", "50", "--short"], env={**os.environ, "BALEEN_BIN": str(BIN)},
                          capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "result: held" in done.stdout
