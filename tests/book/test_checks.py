"""What the checks of exercises refuse, in words, and what they take that the solution does not write."""

import ast
from typing import Any, NamedTuple

import chapters
import nbformat
import pytest


class Exercise(NamedTuple):
    """A chapter's check, and the answers that it is given: expressions, with the solution at hand.

    Attributes:
        chapter: how its notebook's name begins.
        check: the function that checks.
        wrong: as students answer.
        right: as others would answer.
        given: what the check needs of the chapter, besides its imports, functions and classes.
    """

    chapter: str
    check: str
    wrong: list[str]
    right: list[str]
    given: str = ""


EXERCISES = [
    Exercise(
        "01",
        "check_ceiling",
        ["lambda C: 1 - 1 / C", "lambda C: 100 / C", "my_ceiling"],
        ["lambda C: 1 / C", "lambda C: (torch.ones(C) / C).max().item()", "lambda C: torch.tensor(1 / C)"],
    ),
    Exercise(
        "02",
        "check_how_many",
        ["lambda C: 1 / (12 * C**2)", "lambda C: 1 / (24 * C)", "my_law"],
        ["law", "lambda C: torch.tensor(1 / (24 * C**2))"],
        "double = torch.float64",
    ),
    Exercise(
        "03",
        "check_private_biases",
        ["methods.FedAvg", "methods.FedPer", "lambda model: PrivateBiases", "Twenty"],
        ["PrivateBiases"],
        """
task = tasks.load("digits-label-shift", seed=0)


class Twenty(PrivateBiases):
    def initialise(self, clusters, seed):
        return super().initialise(torch.zeros(20), seed)
""",
    ),
    Exercise(
        "04",
        "check_split",
        [
            "lambda *given: (lambda base, near, far: (base, far, near))(*split(*given))",
            "lambda first, second, rank: (first, split(first, second, rank)[1:])",
            "lambda first, second, rank: split(first, second, 2 * rank)",
            "my_split",
        ],
        ["split", "lambda first, second, rank: split(first.float(), second.float(), rank)"],
        "generator = torch.Generator().manual_seed(0)",
    ),
    Exercise(
        "06",
        "check_cost",
        [
            "lambda *given: (cost(*given)[0], 0.5)",
            "lambda *given: (cost(*given)[0], 1 - cost(*given)[1])",
            "lambda n, d, C, r: cost(n, d, 1, r)",
            "my_cost",
        ],
        ["cost"],
    ),
    Exercise(
        "08",
        "check_server",
        [
            "lambda old, messages: server(old, messages)[::-1]",
            "lambda old, messages: server(0 * old, messages)",
        ],
        ["server"],
    ),
    Exercise(
        "09",
        "check_step",
        [
            "lambda U, V, G, rate, epsilon: step(U, V, G, 0.1, epsilon)",
            "lambda U, V, G, rate, epsilon: step(U, V, G, rate, 0.0)",
            "lambda U, V, G, rate, epsilon: step(U, V, G, -rate, epsilon)",
            "lambda *given: step(*given)[::-1]",
            "my_step",
        ],
        ["step"],
    ),
    Exercise(
        "13",
        "check_floor",
        [
            "lambda shares, maps: maps",
            "lambda shares, maps: 2 * floor(shares, maps)",
            "lambda shares, maps: floor(shares, maps) * maps.shape[1]",
            "lambda shares, maps: floor(torch.full_like(shares, 1 / len(shares)), maps)",
            "my_floor",
        ],
        ["floor", "lambda shares, maps: float(floor(shares, maps))"],
    ),
    Exercise(
        "relatives",
        "check_choice",
        [
            "lambda losses: torch.nn.functional.one_hot(losses.argmin(dim=1), 4)",
            "lambda losses: torch.nn.functional.one_hot(losses.argmax(dim=1), losses.shape[1])",
            "lambda losses: losses.argmin(dim=1)",
            "my_choice",
        ],
        ["choice", "lambda losses: choice(losses).double()"],
    ),
]


def at_hand(exercise: Exercise) -> dict[str, Any]:
    """The imports, functions and classes of the chapter, and what else the check needs."""
    (path,) = (path for path in chapters.notebooks() if path.stem.startswith(exercise.chapter))
    cells = nbformat.read(path, as_version=4).cells
    found: dict[str, Any] = {"__name__": exercise.check}
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for cell in cells:
        if cell.cell_type == "code" and "%pip" not in cell.source:
            body: list[ast.stmt] = [node for node in ast.parse(cell.source).body if isinstance(node, kinds)]
            exec(compile(ast.Module(body, []), path.name, "exec"), found)
    exec(exercise.given, found)
    return found


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.check)
def test_checks_take_right_answers_and_tell_what_is_wrong(exercise: Exercise) -> None:
    found = at_hand(exercise)
    check = found[exercise.check]
    for answer in exercise.right:
        check(eval(answer, found))
    for answer in exercise.wrong:
        given = eval(answer, found)
        with pytest.raises(AssertionError, match=r"\w+ \w+"):
            check(given)
