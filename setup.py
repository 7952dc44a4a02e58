"""The compiled form, and an sdist that can be reproduced. All else stands in pyproject.toml.

``PAGESIM_COMPILE=1 pip install .`` makes the compiled form.
"""

import gc
import gzip
import os
import runpy
import sys
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

NEEDS = ["mypy==2.4.1", "numpy>=1.26", "pydantic>=2.7"]
"""What compiling needs; the last two for their types."""

CHECKS = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file="]
"""Types are checked by ``make lint``. What is compiled asks of other modules only what types they have."""


class Sdist(sdist):
    """Writes the same bytes for the same files, where ``SOURCE_DATE_EPOCH`` gives the time of all of them."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar" or "SOURCE_DATE_EPOCH" not in os.environ:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        epoch = int(os.environ["SOURCE_DATE_EPOCH"])

        def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode |= 0o644
            member.mode &= 0o755
            return member

        name = f"{base_name}.tar.gz"
        with (
            Path(name).open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=anonymous)
        return name


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
    setup(cmdclass={"sdist": Sdist})
elif {"egg_info", "dist_info"} & set(sys.argv):  # asked what building needs, which may not be there yet
    setup(setup_requires=NEEDS)
else:
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": 2}})
