"""The compiled form: ``PAGESIM_COMPILE=1 pip install .`` makes it. All else stands in pyproject.toml."""

import gc
import os
import runpy
import sys

from setuptools import setup

NEEDS = ["mypy==2.4.1", "numpy>=1.26", "pydantic>=2.7"]
"""What compiling needs; the last two for their types."""

CHECKS = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file="]
"""Types are checked by ``make lint``. What is compiled asks of other modules only what types they have."""


def extensions() -> list:
    """Return what is built."""
    from mypyc.build import mypycify

    modules = runpy.run_path("pagesim/setup/compiled.py")["MODULES"]
    files = [f"pagesim/{name.replace('.', '/')}.py" for name in modules]
    loops = [file for file in files if file.startswith(("pagesim/scheduling/", "pagesim/sim/"))]
    libraries = [(loops, "pagesim.loops"), ([file for file in files if file not in loops], "pagesim.memory")]
    built = mypycify([*CHECKS, *files], opt_level="3", debug_level="0", separate=libraries)
    gc.freeze()  # else Python collects the garbage of mypy as it exits, which takes nearly as long as mypy
    return built


if os.environ.get("PAGESIM_COMPILE", "0") == "0":
    setup()
elif {"egg_info", "dist_info"} & set(sys.argv):  # asked what building needs, which may not be there yet
    setup(setup_requires=NEEDS)
else:
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": 2}})
