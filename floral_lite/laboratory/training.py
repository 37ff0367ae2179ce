"""Runs in a thread of their own, which tell of every round, and end when they are asked to."""

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Thread
from typing import Literal, NamedTuple

from .. import methods
from ..federation import History, Task, federated_rounds
from .choices import Choices

State = Literal["running", "finished", "stopped", "failed"]


class Progress(NamedTuple):
    """How far the runs are.

    Attributes:
        choices: what is run.
        histories: of the methods that have done a round, by name; they grow.
        rates: rounds a second of each, with evaluation.
        state: "running", "finished", "stopped" or "failed".
        message: what went wrong, a sentence; empty unless it failed.
    """

    choices: Choices
    histories: Mapping[str, History]
    rates: Mapping[str, float]
    state: State = "running"
    message: str = ""


def in_turns(choices: Choices, task: Task | None = None) -> Iterator[Progress]:
    """Train the chosen methods beside each other, a round of each in turn.

    Args:
        choices: what to run.
        task: theirs, if it is loaded already.

    Yields:
        How far they are, after every round of every method.

    Raises:
        InputError: a choice is out of range, or a method does not fit the task.
        DivergenceError: a client's loss is not a finite number.
    """
    task, settings = task or choices.load(), choices.settings()
    running = {}
    for name in choices.methods:
        method = methods.make(name, task.model, **choices.method_options(name))
        running[name] = federated_rounds(task, method, settings, choices.seed, choices.device)
    histories: dict[str, History] = {}
    seconds = dict.fromkeys(choices.methods, 0.0)
    for _ in range(settings.rounds):
        for name, rounds in running.items():
            begin = time.perf_counter()
            histories[name] = next(rounds).history
            seconds[name] += time.perf_counter() - begin
            rates = {each: len(history.rounds) / seconds[each] for each, history in histories.items()}
            yield Progress(choices, histories, rates)


class Training:
    """Trains in a thread, so that whoever starts it stays free; one at a time.

    Layers that draw random numbers themselves, other than dropout, use torch's global generator: what other
    cells draw from it meanwhile may not repeat.

    Args:
        tell: called in that thread, after every round and at the end, but no longer for runs that others
            have replaced.
    """

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        """Nothing runs yet."""
        self._tell = tell
        self._thread: Thread | None = None
        self._ends, self._replaced = Event(), Event()
        self._loaded: tuple[object, Task] | None = None  # the last task: most restarts have the same

    @property
    def running(self) -> bool:
        """Whether rounds are still to come."""
        return self._thread is not None and self._thread.is_alive() and not self._ends.is_set()

    def start(self, choices: Choices) -> None:
        """Begin; what ran before ends after the round that it is in, and only then the new one begins."""
        if self.running:  # else it was stopped, and is still to tell of its end
            self._replaced.set()
        self._ends.set()
        before, self._ends, self._replaced = self._thread, Event(), Event()
        signs = self._ends, self._replaced
        self._thread = Thread(target=self._work, args=(choices, before, *signs), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask what runs to end after the round that it is in."""
        self._ends.set()

    def wait(self, seconds: float | None = None) -> None:
        """Until the thread has ended, or that long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _load(self, choices: Choices) -> Task:
        """The task, or the last one where it is the same."""
        wanted = (choices.task, choices.task_options())
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = None  # never two of them
            self._loaded = (wanted, choices.load())
        return self._loaded[1]

    def _work(self, choices: Choices, before: Thread | None, ends: Event, replaced: Event) -> None:
        """In the thread."""
        if before is not None:
            before.join()
        now = Progress(choices, {}, {})
        try:
            for now in in_turns(choices, self._load(choices)):
                if ends.is_set():
                    break
                self._tell(now)
            now = now._replace(state="stopped" if ends.is_set() else "finished")
        except Exception as error:  # a thread would end in silence: let the reader see it
            now = now._replace(state="failed", message=str(error) or type(error).__name__)
        ends.set()  # a control that moves from now on begins nothing
        if not replaced.is_set():
            self._tell(now)
