"""Count the parameters of every config in counted.csv with transformers' own classes on the meta device.

    python tests/models/make_counted.py

needs transformers and torch, which the tests do not. A row is a config as transformers writes it, less what
every config has, and the parameters of its model: tied ones once, with the biases by which routers balance
their load, which are buffers in some families. Phi's LM head has a bias there that vLLM does not make; it is
left out. To add a row, write its config with any number.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

ROUTERS = ("e_score_correction_bias", "expert_bias")


def count(config: Any) -> int:
    """Return the parameters of a config's model."""
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = AutoModelForImageTextToText.from_config(config)
        if getattr(config, "vision_config", None) is not None:
            model = AutoModelForImageTextToText.from_config(config)
    parameters = sum(each.numel() for each in model.parameters())
    buffers = sum(each.numel() for name, each in model.named_buffers() if name.endswith(ROUTERS))
    return parameters + buffers - (config.vocab_size if config.model_type == "phi" else 0)


def main() -> None:
    """Write the file beside this one anew."""
    path = Path(__file__).with_name("counted.csv")
    configs = [json.loads(row["config"]) for row in csv.DictReader(path.read_text().splitlines())]
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["parameters", "config"])
        for given in configs:
            keys = {key: value for key, value in given.items() if key != "model_type"}
            config = transformers.CONFIG_MAPPING[given["model_type"]](**keys)
            table.writerow([count(config), json.dumps(given, sort_keys=True)])


if __name__ == "__main__":
    main()
