"""Stubs: what vLLM imports and no scheduler calls, so that an unpacked wheel imports without a GPU.

What remains is vLLM's own Python, and the packages of ``requirements.txt``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

STUBS = {
    "v0": """
        aioprometheus huggingface_hub psutil pydantic ray torch transformers xformers
        vllm._C vllm.cuda_utils vllm.engine.metrics vllm.engine.ray_utils vllm.model_executor
        vllm.transformers_utils vllm.worker
    """,
    "v1": """
        PIL aiohttp blake3 cbor2 cloudpickle cpuinfo diskcache gguf huggingface_hub llguidance mcp openai
        openai_harmony outlines_core partial_json_parser prometheus_client psutil pybase64 regex requests
        safetensors setproctitle tokenizers tqdm transformers urllib3 uvloop xgrammar yaml zmq
        vllm._C vllm._C_stable_libtorch vllm._moe_C vllm.entrypoints vllm.parser vllm.reasoning
        vllm.tool_parsers
    """,
}
"""Modules, by the engine that is to run without them."""

BARE = {"v0": ("vllm", "vllm.engine"), "v1": ()}
"""Packages of vLLM whose ``__init__`` is not run: it imports models and servers."""


class Anything:
    """An object of which any attribute, call or item is again anything; a decorator that changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorates else Anything()

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: Any) -> Anything:
        return Anything()

    def __or__(self, other: Any) -> Anything:
        return Anything()

    __ror__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class StubModule(types.ModuleType):
    """A module that has every name."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubbed modules, and all that is in them, before Python looks for the real ones."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        parts = name.split(".")
        if any(".".join(parts[:depth]) in self.names for depth in range(1, len(parts) + 1)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> StubModule:
        return StubModule(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def make_importable(engine: str, folder: Path) -> None:
    """Let ``import vllm`` find what is unpacked in a folder.

    Args:
        engine: ``v0`` or ``v1``.
        folder: where the wheel is unpacked.
    """
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_TARGET_DEVICE="cpu")
    sys.meta_path.insert(0, StubFinder(STUBS[engine].split()))
    sys.path.insert(0, str(folder))
    for name in BARE[engine]:
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
