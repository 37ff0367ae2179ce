"""What the tests of the core share: one small federation of ragged clients in double precision."""

import signal
from typing import get_args

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from torch import nn

from floral_lite import Task
from floral_lite.federation import Engine

from .federations import make_task, normal

hypothesis_settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=40)
hypothesis_settings.load_profile("same-every-time")
torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
# what a shell starts in the background ignores Ctrl-C, and so would all that a test starts in its turn
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_global_generator() -> None:
    """Models that a test builds start from the same parameters whenever it runs."""
    torch.manual_seed(0)


@pytest.fixture(params=get_args(Engine))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Both ways to train: what a run promises it promises of each."""
    chosen: Engine = request.param
    return chosen


@pytest.fixture
def ragged_task() -> Task:
    """Five clients with 7, 3, 10, 5 and 4 samples in three clusters; a two-layer classifier."""
    return make_task(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
        normal(4),
        sizes=(7, 3, 10, 5, 4),
        participation=0.6,
        learning_rate=0.3,
    )
