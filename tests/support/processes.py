"""Several processes that share what this one has imported: starting them takes no time.

Tests of the command line start real ones; here it is the training that is put to the proof, not how it is started.
"""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any


def in_processes(number: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in so many processes that form a group; all must end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_child, args=(rank, number, port, function, arguments)) for rank in range(number)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * number


def _child(rank: int, number: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true", "KIT_PROCESSES": str(number)}
    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()  # what an earlier test of this process has left
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
