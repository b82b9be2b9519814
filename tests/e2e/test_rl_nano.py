"""The nano job of `baleen rl` in full, seed 1, against the bounds that tools/nano_rl.py states."""
import subprocess
import sys

import pytest

from conftest import BIN, TOP


@pytest.mark.usefixtures("program")
@pytest.mark.timeout(1500)
def test_seed_1_meets_its_bounds(tmp_path):
    done = subprocess.run([str(BIN / "baleen"), "rl", "--out", str(tmp_path)], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  right  ") == 3 and done.stdout.count("  wrong  ") <= 1
    held = subprocess.run([sys.executable, str(TOP / "tools" / "nano_rl.py"), str(tmp_path)], capture_output=True, text=True)
    print(held.stdout)
    assert held.returncode == 0, held.stdout
