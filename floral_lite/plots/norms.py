"""Figures of normalisation layers: what they normalise with, and what their statistics are."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .style import COLOURS, GREY, Picture, bare, figure, grouped_bars, legend


def reaches(named: Mapping[str, npt.ArrayLike]) -> Picture:
    """For each norm, which entries of a batch one marked output depends on.

    Args:
        named: True where the output depends on the input, shape (B, d), by the norm's name; the marked
            output is the entry (0, 0).
    """
    made, axes = figure(1, len(named), 2.0 * len(named), 2.2)
    for axis, (name, mask) in zip(axes[0], named.items(), strict=True):
        reached = np.asarray(mask, dtype=bool)
        axis.imshow(np.where(reached, 1.0, 0.15), cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest")
        rows, columns = reached.shape
        for row in range(rows + 1):
            axis.axhline(row - 0.5, color=GREY, linewidth=0.6)
        for column in range(columns + 1):
            axis.axvline(column - 0.5, color=GREY, linewidth=0.6)
        axis.plot(0, 0, marker="o", color=COLOURS[1], markersize=7)
        bare(axis)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("channel", fontsize=9)
    axes[0, 0].set_ylabel("sample", fontsize=9)
    return made


def client_statistics(
    means: npt.ArrayLike, deviations: npt.ArrayLike, pooled: Mapping[str, tuple[float, float]]
) -> Picture:
    """Mean and deviation of one channel at each client, and at the server.

    Args:
        means: of each client, shape (K,).
        deviations: standard deviation of each client, shape (K,).
        pooled: further (mean, deviation), by name.
    """
    means, deviations = np.asarray(means), np.asarray(deviations)
    made, ((axis,),) = figure(1, 1, 6.8, 3.2)
    places = np.arange(len(means))
    look = {"fmt": "o", "capsize": 3, "markersize": 5}
    axis.errorbar(places, means, deviations, color=COLOURS[0], label="a client", **look)
    for place, (colour, (name, (mean, deviation))) in enumerate(
        zip(COLOURS[1:], pooled.items(), strict=False), start=len(means)
    ):
        axis.errorbar([place], [mean], [deviation], color=colour, label=name, **look)
    axis.set(
        xlabel="client",
        ylabel="input of the norm, mean and deviation",
        xticks=places,
        xlim=(-0.6, len(means) + len(pooled) - 0.4),
    )
    legend(made, ncols=3)
    return made


def fitted_lines(
    inputs: npt.ArrayLike, wanted: npt.ArrayLike, lines: Mapping[str, Sequence[tuple[float, float]]]
) -> Picture:
    """For each rule the lines that it has gone through: the first dashed, the last thick.

    Args:
        inputs: of the samples, shape (N,).
        wanted: the outputs that the lines should have there, shape (N,).
        lines: (scale, shift) of each line from the first to the last, by the rule's name.
    """
    inputs, wanted = np.asarray(inputs), np.asarray(wanted)
    made, axes = figure(1, len(lines), 7.6, 3.2)
    # from zero, about which a scale turns
    ends = np.array([min(0.0, inputs.min()), max(0.0, inputs.max()) + 0.3])
    middle, room = wanted.mean(), np.ptp(wanted)
    for axis, colour, (rule, pairs) in zip(axes[0], COLOURS, lines.items(), strict=False):
        axis.plot(inputs, wanted, "o", color=GREY, markersize=4, label="wanted")
        for scale, shift in pairs[1:-1]:
            axis.plot(ends, scale * ends + shift, color=colour, linewidth=0.8, alpha=0.5)
        for (scale, shift), dash, width in ((pairs[0], "--", 1.2), (pairs[-1], "-", 2.4)):
            axis.plot(ends, scale * ends + shift, dash, color=colour, linewidth=width)
        axis.set(
            xlabel="input x",
            ylabel="output",
            xlim=ends,
            ylim=(middle - 1.6 * room, middle + 1.3 * room),
        )
        axis.set_title(rule, fontsize=10)
    return made


def accuracy_bars(runs: Mapping[str, Sequence[float]], groups: Sequence[str]) -> Picture:
    """Accuracy in per cent of several runs, one group of bars a group of clients.

    Args:
        runs: accuracies in per cent, one a group, by the run's name.
        groups: what the groups are called.
    """
    made, ((axis,),) = figure(1, 1, 6.8, 3.2)
    grouped_bars(axis, runs)
    axis.set(ylabel="test accuracy (%)", ylim=(0, 112), xticks=range(len(groups)), xticklabels=groups)
    legend(made)
    return made
