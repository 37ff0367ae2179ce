"""The base models of the paper's tasks."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .copies import copied
from .errors import require
from .seeds import check_seed, stream

# mean and standard deviation of CIFAR's red, green and blue
CIFAR_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def mlp(num_inputs: int, num_hidden: int, num_outputs: int) -> nn.Module:
    """The two-layer ReLU net of the paper's MNIST task, on flattened inputs.

    Args:
        num_inputs: d_x, features of a flattened input.
        num_hidden: d_h, the width of the hidden layer.
        num_outputs: d_y, labels.

    Source: section 'Experiments', 'MNIST and CIFAR-10'.
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(num_inputs, num_hidden), nn.ReLU(), nn.Linear(num_hidden, num_outputs)
    )


def relu_net(num_inputs: int, num_hidden: int, num_outputs: int, batch_norm: bool = False) -> nn.Module:
    """The two-layer ReLU net of the paper's synthetic MLP tasks.

    Args:
        num_inputs: d_x.
        num_hidden: the width of the hidden layer.
        num_outputs: d_y.
        batch_norm: normalise what comes out of the ReLU.

    Source: section 'Synthetic MLP'; where the batch norm stands, the authors' configuration.
    """
    norm = [nn.BatchNorm1d(num_hidden)] if batch_norm else []
    return nn.Sequential(
        nn.Linear(num_inputs, num_hidden), nn.ReLU(), *norm, nn.Linear(num_hidden, num_outputs)
    )


def cnn() -> nn.Module:
    """The network of the paper's CIFAR-10 tasks: two convolutions, two linear layers.

    It takes images (N, 3, 32, 32) in [0, 1].

    Source: the authors' configuration; the paper says 'two convolution layers'.
    """
    return nn.Sequential(
        Normalise(*CIFAR_STATISTICS),
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(3),
        nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def vgg8() -> nn.Module:
    """The VGG-8 of the paper's CIFAR-100 task: five convolutions, three linear layers, dropout between.

    It takes images (N, 3, 32, 32) in [0, 1], and has one output for each of the 100 labels.

    Source: the authors' configuration; the paper gives the name.
    """
    layers: list[nn.Module] = [Normalise(*CIFAR_STATISTICS)]
    num_in = 3
    for num_out in (16, 32, 64, 128, 512):
        layers += [HeConv2d(num_in, num_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        num_in = num_out
    # 32 x 32 pixels, halved five times, are one
    layers += [nn.Flatten()]
    for _ in range(2):
        layers += [nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 100))


class HeConv2d(nn.Conv2d):
    """A convolution whose first weights are N(0, sqrt(2 / (k k c_out))), and whose biases, if any, are zero.

    The layer draws them itself, so that a copy of the model that is drawn anew has the same distribution.

    Source: the authors' configuration; He et al., 2015, with the outputs counted.
    """

    def reset_parameters(self) -> None:
        """Draw after torch's own layer has drawn, so that later layers begin as they do behind that one."""
        super().reset_parameters()
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Normalise(nn.Module):
    """Images (..., channels, H, W) in [0, 1] less a mean, over a standard deviation, for each channel.

    These numbers are neither parameters, which would be trained, nor buffers, which a federation
    would have to average.

    Args:
        mean: one for each channel.
        std: likewise, positive.

    Example:
        >>> Normalise([0.5, 0.0], [0.25, 1.0])(torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]))
        tensor([[[-2.,  2.]],
        <BLANKLINE>
                [[ 0.,  1.]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = tuple(mean), tuple(std)

    def forward(self, images: Tensor) -> Tensor:
        """(x - mean) / std, of the same shape."""
        # plain numbers for each channel: tensors of them would have to follow the images to a device
        channels = zip(images.unbind(-3), self.mean, self.std, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], dim=-3)

    def extra_repr(self) -> str:
        """The numbers, for print(model)."""
        return f"mean={self.mean}, std={self.std}"


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model, built on the CPU, whose first parameters follow from a seed.

    Torch's own generators are left as they were.

    Raises:
        InputError: the seed is no whole number from 0 to 2**63 - 1.

    Example:
        >>> first, second = (seeded(lambda: nn.Linear(2, 2), seed=1) for _ in range(2))
        >>> bool(torch.equal(first.weight, second.weight))
        True
    """
    check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))  # torch.manual_seed sets those of GPUs too
        return build()


def reinitialised(model: nn.Module, *key: int) -> nn.Module:
    """A copy of a model whose layers draw their first parameters anew, each with its reset_parameters().

    They are drawn on the CPU, so that they are the same wherever the model is.

    Args:
        model: it is left as it is.
        key: the seed, and further numbers; another key gives other parameters.
    """

    def draw(layer: nn.Module) -> None:
        # pruning makes a plain weight of weight_orig, and torch's older weight_norm of weight_g and weight_v
        made = {name for name, value in vars(layer).items() if isinstance(value, Tensor)}
        hooked = made & {name.rpartition("_")[0] for name in layer._parameters}
        for name in ("reset_parameters", "_reset_parameters"):  # attention has the second
            if hasattr(layer, name):
                require(
                    not parametrize.is_parametrized(layer) and not hooked,
                    f"a {type(layer).__name__} has a parametrisation (weight_norm, say), in which what its "
                    f"{name}() draws is lost: all models would start alike; remove the parametrisation, or "
                    "take a method with one model",
                )
                getattr(layer, name)()

    # on the CPU: a GPU would draw from a generator of its own, whose state nobody knows
    fresh = copied(model).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(key[0], "copies", *key[1:]).initial_seed())
        # parts before the whole, as they are made: attention and transformers draw over what their parts drew
        fresh.apply(draw)
    return fresh.to(next((parameter.device for parameter in model.parameters()), torch.device("cpu")))
