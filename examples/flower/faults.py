"""What happens when parts of a federation over Flower are killed: each fault and its consequence."""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from demo import NUM_CLIENTS, deal, describe, done, hand_in, whole, write
from deployment import Deployment
from safetensors import safe_open

from floral_lite.federation import load_checkpoint

ROUNDS = 6


def main() -> None:
    """One run, in which first a SuperNode and then the SuperLink is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for keys, logs and files; a new one")
    parser.add_argument("--patience", type=float, default=600, help="seconds for each step")
    parser.add_argument("--out", type=Path, help="a JSON file for the outcomes")
    given = parser.parse_args()
    folder = given.folder.absolute()
    server = folder / "server"
    config = {"method": "floral", "rounds": ROUNDS, "evaluate-every": ROUNDS, "num-clients": NUM_CLIENTS}
    outcome = {"made": describe(sys.argv), "rounds": ROUNDS, "seconds": {}}

    deal(folder, whole(config).task)
    with Deployment(folder, NUM_CLIENTS, given.patience) as deployment:

        def wait(what: str, condition: Callable[[], bool]) -> None:
            outcome["seconds"][what] = round(deployment.wait(what, condition), 1)
            print(f"{outcome['seconds'][what]:6.0f} s until {what}", flush=True)

        hand_in(deployment, config, server)
        wait("the first round is done", lambda: done(server) >= 1)
        wait("client 1 trains in a round", lambda: own(deployment, 1)[0] > done(server))
        deployment.kill("supernode-1", signal.SIGKILL)
        killed, theta = own(deployment, 1)
        wait("the run has gone on without SuperNode 1", lambda: done(server) >= killed)
        deployment.start_supernode(1)
        wait("SuperNode 1 trains again", lambda: own(deployment, 1)[0] > killed)
        outcome["node_killed_in_round"], outcome["node_back_in_round"] = killed, own(deployment, 1)[0]
        outcome["same_router"] = torch.equal(own(deployment, 1, "before")[1], theta)

        wait("the next round is done", lambda: done(server) >= own(deployment, 1)[0])
        wait("client 0 trains in a round", lambda: own(deployment, 0)[0] > done(server))
        deployment.kill("superlink", signal.SIGKILL)
        outcome["link_killed_in_round"] = done(server) + 1
        deployment.start_superlink()
        hand_in(deployment, config, server)
        wait("the run, started again, is at its end", (server / "history.json").exists)
    (federation,) = load_checkpoint(server) or []
    outcome["rounds_kept"] = [entry.round for entry in federation.history.rounds]
    outcome["accuracy"] = federation.history.rounds[-1].test_accuracy
    print(json.dumps(outcome, indent=1))
    write(outcome, given.out)


def own(deployment: Deployment, client: int, kept: str = "after") -> tuple[int, torch.Tensor]:
    """The last round in which a client trained, and its router after or before this round; 0 if none."""
    for path in deployment.own(client).rglob("client-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            return int(file.metadata()["round"]), file.get_tensor(f"{kept}/router_logits")
    return 0, torch.zeros(0)


if __name__ == "__main__":
    main()
