"""Workers on this machine, started by torchrun's own agent."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def run(size: int, command: Sequence[str], shared: dict[str, str]) -> tuple[int, int] | None:
    """Runs workers to their end, and ends the others when one fails.

    Args:
        size: How many.
        command: Program and arguments.
        shared: The environment of all workers; the agent adds to it what each has for itself.

    Returns:
        The rank that failed first and its status, negative for a signal; None if all ended well.

    Raises:
        KeyboardInterrupt: after a signal to this process, which the workers got as well.
    """
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.NONE, tee=Std.ALL),
            log_line_prefix_template="[${rank}] ",
        )
        os.environ.update(shared)
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            failures = error.failures.items()
            rank, failure = min(failures, key=lambda pair: pair[1].timestamp)
            return rank, failure.exitcode
        except SignalException as error:
            raise KeyboardInterrupt from error
        finally:
            os.environ.clear()
            os.environ.update(before)
    return None
