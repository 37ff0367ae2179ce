"""The same federation on other people's machines, over Flower: a client app, a server app, a strategy."""

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "floral_lite.flower needs Flower, which has Python 3.11 or newer: pip install 'flwr>=1.41'"
    ) from error

from .client import client_app
from .messages import BadMessage
from .server import server_app
from .strategy import RolesStrategy

__all__ = ["BadMessage", "RolesStrategy", "client_app", "server_app"]
