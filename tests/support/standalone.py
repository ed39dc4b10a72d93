"""Programs that run in a process of their own, in which kit cannot be imported.

Pushed models and saved pipelines must work there, with transformers alone.
"""

import subprocess
import sys
from pathlib import Path

BLOCK_KIT = """
import sys

class BlockKit:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kit":
            raise ModuleNotFoundError("kit is blocked in this process")

sys.meta_path.insert(0, BlockKit())
"""
CHECK = '\nassert "kit" not in sys.modules\n'


def run_without_kit(program: str, folder: Path, *arguments: object, timeout: int = 300) -> str:
    """Run a Python program in a folder, without kit and offline; returns what it prints."""
    script = folder / "standalone.py"
    script.write_text(BLOCK_KIT + program + CHECK, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        cwd=folder,
        # nothing of this environment, in which kit may be on PYTHONPATH and code in the cache of transformers
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
