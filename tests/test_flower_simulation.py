"""What the script counts that measures Flower's simulation: the paper's numbers, and the messages."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from floral_lite import History, Run, Task, methods, tasks
from floral_lite.flower import client_app, server_app
from floral_lite.models import mlp

from .flower_grid import LocalGrid
from .flower_runs import server_context


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with its neighbours as it has them when it is run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "flower"))
    import simulation

    monkeypatch.delitem(sys.modules, "simulation")
    return simulation


@pytest.fixture
def three() -> Task:
    """Three clients with digits, one round."""
    task = tasks.load("digits-rotate", num_clients=3, num_clusters=3)
    return replace(task, settings=replace(task.settings, rounds=1, evaluate_every=1, participation=1.0))


def test_the_paper_s_numbers_are_those_of_its_formulas(simulation: ModuleType) -> None:
    model = mlp(784, 200, 10)
    base = 784 * 200 + 200 + 200 * 10 + 10
    adaptor = (784 + 200) + 200 + (200 + 10) + 10  # rank 1, and a bias
    counted = {name: simulation.paper_numbers(name, model) for name in simulation.METHODS}
    assert counted == {
        "fedavg": base,
        "local-adaptor": base,
        "floral": base + 4 * adaptor,
        "ensemble": 4 * base,
    }
    # 1% of 200 x 4000 is 8000, and one rank has 4200; 1% of 1000 x 4000 is 40000, eight ranks of 5000
    assert simulation.paper_numbers("floral", torch.nn.Linear(200, 4000, bias=False)) == 800_000 + 4 * (
        4200 + 4000
    )
    assert (
        simulation.paper_numbers("floral", torch.nn.Linear(1000, 4000, bias=False)) == 4_000_000 + 4 * 44_000
    )


def test_messages_are_counted_as_they_pass(simulation: ModuleType, three: Task, tmp_path: Path) -> None:
    for name in simulation.METHODS:
        run = Run(three, methods.make(name, three.model), seed=0)
        folder = tmp_path / name
        simulation.deal(folder, three)
        own = simulation.from_files(run, folder)
        grid = LocalGrid(client_app(lambda _, own=own: own, folder / "clients"), 3)
        sizes: dict[str, list[int]] = {"message_down": [], "message_up": []}
        simulation.count(grid, sizes)
        server_app(lambda _, own=own: own, folder / "server")(grid, server_context())
        history = History.load(folder / "server" / "history.json")
        assert history.bytes_down == 4 * simulation.paper_numbers(name, three.model)
        assert history.rounds[0].test_accuracy is not None  # messages of the test passed, too
        trained = [sent for sent in grid.sent if sent[1].metadata.message_type == "train"]
        assert len(trained) == 3
        for which, way in ((1, "message_down"), (2, "message_up")):
            assert sizes[way] == [simulation.num_bytes(sent[which]) for sent in trained]
            # names and headers take the same few hundred bytes a tensor, however large it is
            names = len(trained[0][1].content.array_records["arrays"])
            beside = sizes[way][0] - history.bytes_down
            assert 200 * names < beside < 700 * names


def test_a_client_reads_its_own_file(simulation: ModuleType, three: Task, tmp_path: Path) -> None:
    simulation.deal(tmp_path, three)
    own = simulation.from_files(Run(three, methods.FedAvg(three.model), seed=0), tmp_path).task
    (tmp_path / "client-0" / "data.safetensors").unlink()
    for kind in ("train", "test"):
        for tensor, wanted in zip(getattr(own, kind)[2], getattr(three, kind)[2], strict=True):
            assert torch.equal(tensor, wanted)
    with pytest.raises(FileNotFoundError):
        own.train[0]


@pytest.mark.parametrize("client", range(3))
def test_the_app_has_each_clients_own_data_and_all_else_as_everybody(
    simulation: ModuleType, tmp_path: Path, client: int
) -> None:
    config = {"method": "floral", "rounds": 2, "evaluate-every": 1, "num-clients": 3}
    everybody = simulation.whole(config)
    simulation.deal(tmp_path, everybody.task)
    from app.digits import make  # the neighbours are on the path now

    own = make({**config, "data": str(tmp_path / f"client-{client}" / "data.safetensors")})
    for kind in ("train", "test"):
        pair = getattr(own.task, kind)[client], getattr(everybody.task, kind)[client]
        assert all(map(torch.equal, *pair))
    assert (own.task.settings, own.seed) == (everybody.task.settings, everybody.seed)
    assert own.method.options() == everybody.method.options()
