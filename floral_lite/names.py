"""Names of parameters and buffers: the layer's, a dot, and its own."""


def joined(layer: str, own: str) -> str:
    """The whole name; where the model itself is the layer, the layer's is empty and there is no dot.

    Example:
        >>> joined("0", "weight"), joined("", "weight")
        ('0.weight', 'weight')
    """
    return f"{layer}.{own}" if layer else own
