"""BLIS: https://github.com/inference-sim/inference-sim, ``blis replay`` and its trace format of version 2.

The format: ``sim/workload/tracev2.go`` there; the flags: ``docs/reference/configuration.md``.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from peers import Call, Load

_HEADER = "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"

# The columns that its reader asks for, and what stands in each where a request says nothing of it.
_COLUMNS = {
    "request_id": 0,
    "client_id": "",
    "tenant_id": "",
    "slo_class": "",
    "session_id": "",
    "round_index": 0,
    "prefix_group": "",
    "prefix_length": 0,
    "streaming": "true",
    "input_tokens": 0,
    "output_tokens": 0,
    "text_tokens": 0,
    "image_tokens": 0,
    "audio_tokens": 0,
    "video_tokens": 0,
    "reason_ratio": 0,
    "model": "",
    "deadline_us": 0,
    "server_input_tokens": 0,
    "arrival_time_us": 0,
    "send_time_us": 0,
    "first_chunk_time_us": 0,
    "last_chunk_time_us": 0,
    "num_chunks": 0,
    "status": "ok",
    "error_message": "",
    "finish_reason": "",
}


class Blis:
    """A built checkout of BLIS.

    Args:
        checkout: its folder, with the program ``blis`` and its ``defaults.yaml``.
        model: one that it knows, such as ``qwen/qwen3-14b``.
        device: likewise, such as ``H100``.
    """

    name = "blis"

    def __init__(self, checkout: Path, model: str, device: str) -> None:
        self.checkout = checkout
        self.model = model
        self.device = device

    def prepare(self, load: Load, folder: Path) -> Call:
        header, data = folder / "blis.yaml", folder / "blis.csv"
        header.write_text(_HEADER, encoding="utf-8")
        arrivals = (load.arrival_s * 1e6).round().astype(int).tolist()
        with data.open("w", newline="", encoding="utf-8") as out:
            rows = csv.DictWriter(out, list(_COLUMNS))
            rows.writeheader()
            lengths = zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True)
            for number, ((prompt, output), arrival) in enumerate(zip(lengths, arrivals, strict=True)):
                own = {"request_id": number, "input_tokens": prompt, "output_tokens": output}
                own |= {"text_tokens": prompt, "arrival_time_us": arrival, "send_time_us": arrival}
                rows.writerow({**_COLUMNS, **own})
        options = {
            "trace-header": header,
            "trace-data": data,
            "model": self.model,
            "hardware": self.device,
            "tp": 1,
            "total-kv-blocks": load.num_blocks,
            "block-size-in-tokens": load.block_size,
            "max-num-running-reqs": load.max_num_seqs,
            "max-num-scheduled-tokens": load.max_num_batched_tokens,
            "horizon": 1 << 62,  # else it ends at twice the last arrival
            "results-path": folder / "blis.json",
        }
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return Call([str(self.checkout / "blis"), "replay", *given], self.checkout)

    def finished(self, folder: Path) -> int | None:
        results = folder / "blis.json"
        return len(json.loads(results.read_text(encoding="utf-8"))) if results.is_file() else None
