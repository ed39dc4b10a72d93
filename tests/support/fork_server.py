"""Programs in forks of one process that has imported everything: `kit …` and `python …` without their start-up time.

    python -m support.fork_server SOCKET

A shell finds small clients (`write_clients`) as `kit` and `python`. A client sends its arguments, folder, environment
and streams through the socket; a fork becomes the program, and its exit code goes back. SOCKET.seconds gets the
processor time of each, which means more on a busy machine than the time that passed.
"""

import atexit
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

IMPORTED = (
    "matplotlib.backends.backend_agg", "matplotlib.figure", "peft", "sacrebleu", "seqeval.metrics", "sklearn.metrics",
    "rouge_score.rouge_scorer", "evaluate", "datasets", "accelerate", "transformers.pipelines",
    "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2", "transformers.trainer",
    "transformers.models.modernbert.modeling_modernbert", "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5", "pandas", "torch._dynamo", "scipy.stats", "torchvision",
)  # fmt: skip
CLIENT = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = dict(program={program!r}, arguments=sys.argv[1:], folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(server, [b"!"], [0, 1, 2])
server.sendall(json.dumps(request).encode())
server.shutdown(socket.SHUT_WR)
answer = server.recv(16)
sys.exit(int(answer) if answer else "the program died without an exit code")
"""


def write_clients(folder: Path, address: Path) -> Path:
    """Write the programs `kit` and `python` into a folder, for the PATH of a shell."""
    folder.mkdir()
    for program in ("kit", "python"):
        path = folder / program
        path.write_text(CLIENT.format(python=sys.executable, address=str(address), program=program), encoding="utf-8")
        path.chmod(0o755)
    return folder


def import_everything() -> None:
    """Import kit and what it imports when it needs it."""
    import kit

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:  # an optional package
            continue


def warm_up() -> None:
    """Fill the caches of libraries; without a backward pass, whose threads would not survive a fork."""
    import io

    from matplotlib.figure import Figure

    from kit.data.builtin import load_builtin

    for name in ("dates", "pydocs", "docstrings"):
        load_builtin(name, sizes={"train": 2, "validation": 2, "test": 2})
    figure = Figure(layout="constrained")
    figure.subplots().plot([1, 2], label="line")
    figure.legend()
    figure.savefig(io.BytesIO(), format="png")


def serve(address: str) -> None:
    """Answer requests, each in a process of its own, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for: they answer themselves
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(client)
            client.close()


def _answer(client: socket.socket) -> None:
    """Become the program that a client asks for."""
    code = 1
    try:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as incoming:
            request = json.loads(incoming.read())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8")
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        code = _run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with Path(f"{client.getsockname()}.seconds").open("a") as file:
            file.write(f"{sum(os.times()[:4]):.2f}\n")
        client.sendall(str(code).encode())
        os._exit(code)


def _run(request: dict[str, Any]) -> int:
    """Run the program as the interpreter does; returns its exit code."""
    arguments = request["arguments"]
    try:
        if request["program"] == "kit":
            from kit.cli import main

            sys.argv = ["kit", *arguments]
            main()
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return int(ended.code) if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
    return 0


if __name__ == "__main__":
    import_everything()
    warm_up()
    serve(sys.argv[1])
