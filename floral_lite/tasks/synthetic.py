"""The paper's synthetic regressions, and the true parameters behind them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import Truth, draw_truth
from ..errors import InputError
from ..federation import Shard, Task
from ..models import relu_net, seeded
from ..seeds import stream


@dataclass(frozen=True)
class Synthetic:
    """A regression whose targets a model with known parameters makes, without noise.

    Attributes:
        sizes: of the target's layers, see `data.draw_truth`.
        build: the model that is to learn it.
        samples_per_parameter: a client's samples for each parameter of the model, 80% of them to train
            on: too few to fit the model alone, enough together.
        normalised: see `data.Truth`.

    Source: sections 'Synthetic Linear', 'Synthetic MLP' and 'Normalization Layers', 'Experiment'.
    """

    sizes: tuple[int, ...]
    build: Callable[[], nn.Module]
    samples_per_parameter: float
    normalised: bool = False

    def truth(self, num_clusters: int, seed: int) -> Truth:
        """What makes the targets."""
        # the clusters' differences have r = 1 and alpha = 2
        return draw_truth(self.sizes, num_clusters, 1, 2.0, stream(seed, "maps"), self.normalised)

    def make(
        self, clusters: Tensor, num_clusters: int, seed: int
    ) -> tuple[nn.Module, list[Shard], list[Shard]]:
        """The model, and every client's train and test shard."""
        model = seeded(self.build, seed)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        num_samples = int(self.samples_per_parameter * num_parameters)
        num_train = int(0.8 * num_samples)
        truth = self.truth(num_clusters, seed)
        train, test = [], []
        for client, cluster in enumerate(clusters.tolist()):
            # x ~ N(0, I)
            inputs = torch.randn(num_samples, self.sizes[0], generator=stream(seed, "samples", client))
            targets = truth.targets(inputs, cluster)
            train.append(Shard(inputs[:num_train], targets[:num_train]))
            test.append(Shard(inputs[num_train:], targets[num_train:]))
        return model, train, test


# The nets are twice as wide as their targets (m = 2), which they can therefore fit.
SYNTHETIC: dict[str, Synthetic] = {
    "synthetic-linear": Synthetic((10, 3), lambda: nn.Linear(10, 3), 0.25),
    "synthetic-mlp": Synthetic((10, 10, 1), lambda: relu_net(10, 20, 1), 0.5),
    "synthetic-mlp-norm": Synthetic(
        (10, 10, 1), lambda: relu_net(10, 20, 1, batch_norm=True), 0.5, normalised=True
    ),
}


def truth(task: Task) -> Truth:
    """The true parameters of a synthetic task, to compare with those that were learned.

    Args:
        task: from `tasks.load` or `tasks.load_seeds`.

    Raises:
        InputError: the task's data have no known parameters.

    Example:
        >>> from floral_lite import tasks
        >>> task = tasks.load("synthetic-linear", seed=1)
        >>> true = tasks.truth(task)
        >>> tuple(true.maps().shape)
        (2, 3, 10)
        >>> inputs, targets = task.train[4]  # a client in cluster 0
        >>> torch.allclose(inputs @ true.maps()[0].T, targets)
        True
    """
    synthetic, details = SYNTHETIC.get(task.name), task.details
    num_clusters, seed = details.get("task_clusters"), details.get("task_seed")
    if synthetic is not None and isinstance(num_clusters, int) and isinstance(seed, int):
        # a name is soon given: that the first client's test inputs are drawn again says whose data they are
        *_, (first,) = synthetic.make(task.clusters[:1], num_clusters, seed)
        if torch.equal(first.inputs, task.test[0].inputs.cpu()):
            return synthetic.truth(num_clusters, seed)
    raise InputError(
        f"task is {task.name!r}, whose data no known parameters made; give one of {', '.join(SYNTHETIC)}, as "
        "tasks.load makes it"
    )
