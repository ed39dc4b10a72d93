"""Lines of documentation in a real shell, with a fork server behind `kit` and `python`."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from support.fork_server import write_clients

TESTS = Path(__file__).parents[1]
PRELUDE = """
source() { :; }; pip() { :; }; hf() { :; }
make() {
    if [ "$1" = demo ]; then
        kit train dates_rnn --output runs/dates_rnn --resume && python recipes/scripts/demo.py runs/dates_rnn
    fi
}
"""
"""Commands about the machine do nothing; `make demo` does what it does after the installation."""


@dataclass(frozen=True)
class Ran:
    """What a line of shell did."""

    line: str
    code: int
    out: str
    err: str
    seconds: float
    """Processor time, without that of `accelerate`."""


class Shell:
    """`with Shell(checkout, folder, environment) as shell:` runs lines with the `kit` and `python` of a checkout."""

    def __init__(self, checkout: Path, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.checkout = checkout
        address = folder / "server"
        self.times = folder / "server.seconds"
        self.times.touch()
        programs = write_clients(folder / "programs", address)
        (programs / "accelerate").symlink_to(Path(sys.executable).parent / "accelerate")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTEST_", "KIT_"))},
            **environment,
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": f"{checkout}:{TESTS}",
            "COLUMNS": "100",
        }
        self.log = (folder / "server.log").open("w")
        self.server = subprocess.Popen(
            [sys.executable, "-m", "support.fork_server", str(address)],
            cwd=checkout,  # python -m looks for modules in the current folder first
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def __enter__(self) -> "Shell":
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n", Path(self.log.name).read_text(encoding="utf-8")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.terminate()
        self.server.wait()
        self.log.close()

    def run(self, line: str, folder: Path, stdin: str = "", timeout: float = 600) -> Ran:
        """Run a line in a folder."""
        before = self.seconds()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{PRELUDE}\n{line}"],
            cwd=folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(line, done.returncode, done.stdout, done.stderr, self.seconds() - before)

    def seconds(self) -> float:
        """The processor time of everything so far."""
        return sum(map(float, self.times.read_text(encoding="utf-8").split()))
