"""Mutants of the kernels' index arithmetic, and which of them the interpreter's tests do not find.

    python tests/mutation/kernels.py --mutants 30 --seed 1

A mutant is one change within a function under ``triton.jit``: ``+`` becomes ``-``, ``<`` becomes ``<=``, a
constant is one more, and so on. It is made in a copy of the checkout, and the kernels' tests run there in
Triton's interpreter until one fails.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.update(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")

import pytest
import torch  # noqa: F401
import triton  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
FILES = ("attention", "tiles", "reduce", "mla", "cache_write", "blocks")
OTHER = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "%", ast.Mod: "//",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
}  # fmt: skip
"""What an operator becomes."""

SYMBOLS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip

OPS = "tests/kernels/ops"
TESTS = (f"{OPS}/test_attention.py", f"{OPS}/test_mla.py", f"{OPS}/test_copies.py")
FIRST = {"kernels/mla.py": TESTS[1], "kernels/cache_write.py": TESTS[2], "kernels/blocks.py": TESTS[2]}
"""Tests that are run first, by the file that a mutant is in."""


class Mutant(NamedTuple):
    """One change: the text from ``start`` to ``end`` of a line becomes ``text``."""

    file: str
    line: int
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        source = (ROOT / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1]
        return f"{self.file}:{self.line}: {self.apply(source).strip()}  (was {source.strip()})"

    def apply(self, line: str) -> str:
        return line[: self.start] + self.text + line[self.end :]


def mutants() -> Iterator[Mutant]:
    """Yield every mutant, file after file."""
    for name in FILES:
        file = f"kernels/{name}.py"
        source = (ROOT / file).read_text(encoding="utf-8")
        lines = source.splitlines()
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef) and any(
                ast.unparse(each) == "triton.jit" for each in function.decorator_list
            ):
                for statement in function.body:
                    for node in ast.walk(statement):
                        yield from _of(node, file, lines)


def _of(node: ast.AST, file: str, lines: list[str]) -> Iterator[Mutant]:
    """Yield what a node can become."""
    if isinstance(node, ast.BinOp):
        pairs = [(node.left, node.op, node.right)]
    elif isinstance(node, ast.Compare):
        pairs = list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield Mutant(file, node.lineno, node.col_offset, node.end_col_offset or 0, str(node.value + 1))
        return
    else:
        return
    for left, operator, right in pairs:
        symbol, line = SYMBOLS.get(type(operator)), left.end_lineno or 0
        if symbol is None or right.lineno != line:
            continue
        # Columns count bytes, and lines with other characters have only comments beside code.
        between = lines[line - 1].find(symbol, left.end_col_offset or 0, right.col_offset)
        if between >= 0:
            yield Mutant(file, line, between, between + len(symbol), OTHER[type(operator)])


def survives(mutant: Mutant, copy: Path, cpu_seconds: int) -> bool:
    """Return whether all tests pass with a mutant in the copy of the checkout.

    They run in a fork of this process, which has loaded torch and triton but none of the product.
    """
    target = copy / mutant.file
    whole = target.read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.apply(lines[mutant.line - 1])
    target.write_text("".join(lines), encoding="utf-8")
    child = os.fork()
    if not child:
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))  # for a loop without an end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        tests = sorted(TESTS, key=lambda test: test != FIRST.get(mutant.file))
        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *tests]
        os._exit(int(pytest.main(arguments)))
    _, status = os.waitpid(child, 0)
    target.write_text(whole, encoding="utf-8")
    return status == 0


def main() -> None:
    """Draw mutants, try each, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutants", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu-seconds", type=int, default=300, help="of one mutant's tests at most")
    parser.add_argument("--first", type=int, default=1, help="the first of those drawn to try")
    asked = parser.parse_args()
    drawn = random.Random(asked.seed).sample(list(mutants()), asked.mutants)
    survived = []
    with tempfile.TemporaryDirectory(prefix="kernels-mutants-") as folder:
        copy = Path(folder) / "copy"
        for part in ("kernels", "workloads", "pagesim", "tests"):
            shutil.copytree(
                ROOT / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", copy)
        for number, mutant in list(enumerate(drawn, 1))[asked.first - 1 :]:
            alive = survives(mutant, copy, asked.cpu_seconds)
            survived += [mutant] * alive
            print(f"{number:3} {'SURVIVED' if alive else 'killed'} {mutant}", flush=True)
    print(f"{len(survived)} of {len(drawn)} survived (seed {asked.seed})")


if __name__ == "__main__":
    main()
