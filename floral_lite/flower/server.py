"""A Flower ServerApp that runs a federation to its end, and goes on where it was interrupted."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..errors import real_number, require
from ..files import alone_in
from .client import Make
from .messages import logger
from .strategy import RolesStrategy


def server_app(make: Make, folder: Path | str, *, timeout: float = 3600.0, **choices: Any) -> ServerApp:
    """A Flower ServerApp that samples, checks, averages, and keeps a checkpoint after each round.

    Started again with the same folder it goes on after the last whole round; a run that was killed loses no
    more than the round that it was in or, with routing='clustered', its rounds of asking.

    Args:
        make: makes the run out of the app's configuration, as for `client_app`. Its data are not used
            here: a server that has none gives a task of `Population(K, lambda k: example)`.
        folder: where checkpoints and, at the end, history.json are; one folder a federation, with one server
            at work in it: another one is refused.
        timeout: seconds, > 0, that a round waits for replies.
        choices: `min_replies`, `patience`, `clip_norm` and the others of RolesStrategy.

    Raises:
        InputError: the timeout is not positive, so that no reply would ever come in time.

    Example:
        >>> from floral_lite import Run, methods, tasks
        >>> def make(config):
        ...     task = tasks.load("digits-rotate")
        ...     return Run(task, methods.FLoRAL(task.model))
        >>> app = server_app(make, folder="run", min_replies=2)
    """
    require(real_number("timeout", timeout) > 0, f"timeout is {timeout} s; it must be positive")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """The whole run."""
        # or a second server would ask the same clients for rounds that the first has behind it
        with alone_in(Path(folder)):
            strategy = RolesStrategy(make(context.run_config), folder, **choices)
            if strategy.remaining:
                strategy.start(grid, strategy.arrays, num_rounds=strategy.remaining, timeout=timeout)
            strategy.history.save(Path(folder) / "history.json", replace=True)
        logger.info("%d rounds are done; they are kept in %s", len(strategy.history.rounds), folder)

    return app
