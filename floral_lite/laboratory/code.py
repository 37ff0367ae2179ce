"""The Python that repeats what the laboratory runs."""

from .. import methods
from .choices import Choices


def as_code(choices: Choices) -> str:
    """A script with the same runs: its `histories` has them by the methods' names.

    Example:
        >>> print(as_code(Choices(methods=("floral",))))
        from floral_lite import methods, tasks, train
        <BLANKLINE>
        task = tasks.load("digits-rotate", seed=0, data_fraction=1.0)
        options = {"seed": 0, "device": "cpu", "local_epochs": 1, "participation": 1.0}
        histories = {}
        <BLANKLINE>
        method = methods.FLoRAL(
            task.model, num_clusters=4, budget=0.1, routing="learned", precondition=True
        )
        histories["floral"] = train(task, method, **options).history
    """
    options = {"seed": choices.seed, "device": choices.device, **choices.changes()}
    lines = [
        "from floral_lite import methods, tasks, train",
        "",
        f'task = tasks.load("{choices.task}", {_arguments(choices.task_options())})',
        f"options = {_quoted(options)}",
        "histories = {}",
    ]
    for name in choices.methods:
        given = _arguments(choices.method_options(name))
        inside = f"task.model, {given}" if given else "task.model"
        made = f"method = methods.{methods.METHODS[name].__name__}("
        short = len(made + inside) < 79
        lines += ["", *([f"{made}{inside})"] if short else [made, f"    {inside}", ")"])]
        lines.append(f'histories["{name}"] = train(task, method, **options).history')
    return "\n".join(lines)


def _arguments(options: dict[str, object]) -> str:
    """As the arguments of a call: a=1, b="c"."""
    return ", ".join(f"{name}={_quoted(value)}" for name, value in options.items())


def _quoted(value: object) -> str:
    """As Python reads it, with double quotes."""
    return repr(value).replace("'", '"')
