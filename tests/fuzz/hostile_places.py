"""Hostile environments, folders and paths, and plug-ins that do not behave."""

from __future__ import annotations

import random
from collections.abc import Callable

from hostile_case import Case, Content, canary, fifo, folder, link

TRACE = b"request_id,arrival_s,prompt_tokens,output_tokens\na,0,20,5\nb,0.5,30,6\n"
RUN = ("run", "--trace", "{}/t.csv", "--num-blocks", "300")
SWEEP = (
    "sweep",
    "--trace",
    "fixed:20,5",
    "--rate",
    "2",
    "--num-requests",
    "4",
    "--grid",
    "num_blocks=300,400",
)
COMMANDS = (
    ("run", "--trace", "fixed:20,5", "--num-requests", "5", "--rate", "2"),
    ("plan", "--model", "llama-3.1-8b", "--gpu", "h100"),
    ("list", "policies"), ("list", "models"), ("list", "gpus"), ("--help",), ("run", "--help"), ("doctor",),
    ("--version",),
    ("run", "--trace", "nö–×.csv"), ("plan", "--model", "nö–×"), ("trace", "describe", "fixed:5,5"),
    ("run", "--trace", "fixed:20,5", "--num-requests", "5", "--json"), ("run", "--zzz"), ("list", "profiles"),
    ("run", "--policies", "orca-max,vllm-sosp", "--trace", "fixed:20,5", "--num-requests", "5"),
)  # fmt: skip


def _case(name: str, argv: tuple[str, ...], expects: str = "any", **more: object) -> Case:
    files: dict[str, Content] = {"t.csv": TRACE, **canary("kept.txt"), **more.pop("files", {})}  # type: ignore[dict-item]
    more.setdefault("fresh", True)
    return Case("environment", name, argv, files, expects, **more)  # type: ignore[arg-type]


def _matplotlibrc(rng: random.Random) -> Case:
    text = rng.choice(
        ("backend: nonsense", "font.size: x", "font.size: 40", "svg.fonttype: none", "\udcff", "zzz: 5",
         "figure.dpi: 1e9", "backend: tkagg", "text.usetex: True", "savefig.format: pdf", ":" * 9000,
         "font.family: no such font", "axes.prop_cycle: import os", "savefig.bbox: tight",
         "path.sketch: 1,1,1")
    )  # fmt: skip
    content: Content = rng.choice((text.encode("utf-8", "surrogateescape"),) * 5 + (folder,))
    return _case("matplotlibrc", (*RUN, "--out", "{}/out"), "done", files={"matplotlibrc": content})


def _backend(rng: random.Random) -> Case:
    name = rng.choice(
        ("nonsense", "tkagg", "qtagg", "", "module://nowhere", "module://os", "MACOSX", "pdf", " ")
    )
    return _case("MPLBACKEND", (*RUN, "--out", "{}/out"), "done", env={"MPLBACKEND": name})


def _matplotlib(rng: random.Random) -> Case:
    env = rng.choice(
        ({"MATPLOTLIBRC": "{}/rc"}, {"MPLCONFIGDIR": "/proc/1/x"}, {"MPLCONFIGDIR": "/dev/null"},
         {"MATPLOTLIBRC": "/nowhere"}, {"DISPLAY": "nonsense:99"}, {"MPLCONFIGDIR": ""})
    )  # fmt: skip
    return _case(
        "matplotlib's folders", (*RUN, "--out", "{}/out"), "done", env=env, files={"rc": b"font.size: x"}
    )


def _encoding(rng: random.Random) -> Case:
    name = rng.choice(
        ("ascii", "utf-16", "utf-32", "ascii:strict", "latin-1:strict", "cp037", "utf-7", "undefined", "idna",
         "punycode", "utf-8:surrogateescape", "ascii:ignore", "cp1252", "shift_jis", "utf-16-le:strict",
         "big5",
         "raw_unicode_escape", "unicode_escape", "utf-8-sig", "mbcs")
    )  # fmt: skip
    # Python itself does not start with these.
    if name in ("undefined", "mbcs"):
        name = "koi8-r"
    return _case("PYTHONIOENCODING", rng.choice(COMMANDS), env={"PYTHONIOENCODING": name})


def _locale(rng: random.Random) -> Case:
    env: dict[str, str | None] = dict(
        rng.choice(
            (
                {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
                {"LC_ALL": "xx_YY.zzz"}, {"LANG": "de_DE.ISO-8859-1", "LC_ALL": None},
                {"LC_ALL": "tr_TR.UTF-8"},
                {"LANG": None, "LC_ALL": None}, {"PYTHONUTF8": "1"}, {"TZ": "nonsense/zone"},
                {"TZ": "UTC+99:99"},
            )
        )
    )  # fmt: skip
    return _case("locale", rng.choice(COMMANDS), env=env)


def _terminal(rng: random.Random) -> Case:
    env = rng.choice(
        ({"COLUMNS": "0"}, {"COLUMNS": "-5"}, {"COLUMNS": "x"}, {"COLUMNS": "1"}, {"COLUMNS": "9" * 30},
         {"LINES": "0", "COLUMNS": "3"}, {"TERM": "nonsense"}, {"TERM": None}, {"TERM": "dumb",
                                                                                "COLUMNS": "2"},
         {"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"COLUMNS": "100000"}, {"TTY_COMPATIBLE": "1"},
         {"COLUMNS": "٣"},
         {"TTY_INTERACTIVE": "1", "FORCE_COLOR": "1", "COLUMNS": "0"}, {"JUPYTER_COLUMNS": "x"})
    )  # fmt: skip
    return _case("the terminal's size", rng.choice(COMMANDS), env=env)


def _variables(rng: random.Random) -> Case:
    env: dict[str, str | None] = rng.choice(
        (
            {"HOME": None}, {"HOME": "/nowhere"}, {"HOME": "/dev/null"}, {"HOME": ""}, {"TMPDIR": "/nowhere"},
            {"PYTHONWARNINGS": "error"}, {"PYTHONWARNINGS": "nonsense"}, {"PYTHONOPTIMIZE": "2"},
            {"PYTHONHASHSEED": "5"},
            {"PYTHONDONTWRITEBYTECODE": "1"}, {"OMP_NUM_THREADS": "0"}, {"OMP_NUM_THREADS": "x"},
            {"PATH": ""},
            {"XDG_CACHE_HOME": "/proc"}, {"PYTHONINTMAXSTRDIGITS": "640"}, {"PYTHONDEVMODE": "1"},
            {"TMPDIR": "/proc"},
            {"USER": None, "LOGNAME": None}, {"JOBLIB_TEMP_FOLDER": "/proc"}, {"LOKY_MAX_CPU_COUNT": "x"},
            {"LOKY_MAX_CPU_COUNT": "-1"}, {"RAY_ADDRESS": "nonsense"}, {"ARROW_NUM_THREADS": "x"},
            {"ARROW_IO_THREADS": "-1"},
        )
    )  # fmt: skip
    return _case("variables", rng.choice((*COMMANDS, (*RUN, "--out", "{}/out"))), env=env)


def _stdout(rng: random.Random) -> Case:
    how = rng.choice(({"stdout": "/dev/full"}, {"closed": 1}, {"closed": 2}, {"stdout": "/dev/full"}))
    return _case("standard output", rng.choice(COMMANDS), **how)


def _out(rng: random.Random) -> Case:
    """Store a result where something is in the way."""
    inside = canary("out/mine.txt")
    old = {"out/scenario.toml": b"policy = 'x'\n", "out/summary.json": b"{}"}
    target, files = rng.choice(
        (
            ("out", {**old, **inside}), ("out", {**old, **inside, "out/deeper/more.txt": b"mine"}), ("out",
                                                                                                     inside),
            ("out", {**old, "out/requests.parquet": b"mine"}), ("out", {"out": fifo}), ("out", canary("out")),
            ("out", {"out": link("kept.txt")}), ("out", {"out": link("out")}), ("out",
                                                                                {"out": link("/proc")}),
            ("out", {"out": link("elsewhere"), **canary("elsewhere/mine.txt"), **old}), ("/proc/x", {}),
            ("/sys/x", {}),
            ("/proc/version", {}), ("/proc/version/x", {}), ("kept.txt/x", {}),
            ("x" * 300, {}), ("x/" * 3000, {}),
            ("", {}),
            ("o\udcff", {}), ("a\nb", {}), ("out/memory.png", {"out/memory.png": link("../kept.txt")}),
            ("..", {}),
            ("out", {**old, "out/memory.png": link("../kept.txt"), **inside}), (".", {}), ("-x", {}), ("~",
                                                                                                       {}),
            ("out", {**old, "out/means.parquet": b"mine", "out/comparison.csv": b"mine"}), ("\x1b[31m", {}),
            ("o\udcff/p", {"o\udcff/kept": b"mine"}), ("out", {**old, "out/summary.json": fifo, **inside}),
        )
    )  # fmt: skip
    path = target if target.startswith("/") or not target else "{}/" + target
    command = rng.choice((RUN, RUN, RUN, ("run", "--policies", "orca-max,vllm-sosp", *RUN[1:])))
    return _case("what is in the way", (*command, "--out", path), files=files, fresh=False, may_change=tuple(
        name for name in files if name.split("/")[-1] in ("scenario.toml", "summary.json", "requests.parquet")
        and not any("mine.txt" in each for each in files)))  # fmt: skip


def _page(rng: random.Random) -> Case:
    """Write a page, a figure or a model over something else."""
    target, files = rng.choice(
        (("page.html", canary("page.html")), ("page.html", {"page.html": link("kept.txt")}), ("kept.txt", {}),
         ("page.html", {"page.html": folder}), ("page.html", {"page.html": fifo}), ("m.json",
                                                                                    canary("m.json")),
         ("page.html", {"page.html": link("page.html")}), ("/proc/version", {}), ("/proc/x.html", {}),
         ("\udcff.html", {}))
    )  # fmt: skip
    path = target if target.startswith("/") else "{}/" + target
    argv = rng.choice(
        (("trace", "fit", "{}/t.csv", path), ("trace", "make", "fixed:5,5", path, "--num-requests", "5"),
         ("trace", "convert", "{}/t.csv", path), ("report", "{}/t.csv", "--out", path))
    )  # fmt: skip
    return _case("another's file for a page", argv, files=files, fresh=False)


def _working_folder(rng: random.Random) -> Case:
    names = ("w\udcff", "a\nb", "x" * 200, "w\x1b[31m", "wö", " ", "-w", "%s", "w'\"", "~")
    cwd = rng.choice(names)
    more = rng.choice((("--out", "out"), (), ("--out", "out", "--json")))
    files = {f"{cwd}/t.csv": TRACE, f"{cwd}/kept.txt": b"mine"}
    return _case("the working folder", ("run", "--trace", "t.csv", *more), files=files, cwd=cwd)


def _shadow(rng: random.Random) -> Case:
    """Have files in the working folder that are called as modules, models, traces and configurations are."""
    name = rng.choice(("numpy.py", "json.py", "pagesim.py", "typer/__init__.py", "sharegpt", "opt-13b",
                       "a100-40gb",
                       "pyproject.toml", "setup.cfg", ".pagesim.toml", "config.json",
                       "fixed:20,5"))  # fmt: skip
    return _case(
        "names in the working folder",
        rng.choice(COMMANDS),
        files={name: b"raise SystemExit(99)\n"},
        fresh=False,
    )


def _jobs(rng: random.Random) -> Case:
    jobs = rng.choice(("1500", "100000", "0", "-1", "x", "2"))
    expects = "refused" if jobs in ("0", "-1", "x") else "done"
    return _case("jobs", (*SWEEP, "--jobs", jobs), expects)


def _ray(rng: random.Random) -> Case:
    address = rng.choice(
        ("192.0.2.1:6379", "nonsense", "", "127.0.0.1:1", "ray://127.0.0.1:1", "\udcff", "x" * 9000)
    )
    return _case("an address of Ray's", (*SWEEP, "--executor", "ray", "--address", address), "refused")


_PLUGINS = {
    "raises at import": "raise RuntimeError('broken')",
    "has no such name": "other = 5",
    "is no Python": "def part(:",
    "exits at import": "import sys; sys.exit(7)",
    "interrupts at import": "raise KeyboardInterrupt",
    "is of another type": "part = 5",
    "raises when called": "def part(*a, **k):\n    raise RuntimeError('broken\\nbadly')",
    "exits when called": "import sys\ndef part(*a, **k):\n    sys.exit(3)",
    "returns another type": "def part(*a, **k):\n    return 'nothing'",
    "returns None": "def part(*a, **k):\n    return None",
    "recurses": "def part(*a, **k):\n    return part(*a, **k)",
    "has no memory": "def part(*a, **k):\n    raise MemoryError",
    "raises what cannot be said": (
        "class E(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "def part(*a, **k):\n    raise E"
    ),
    "interrupts when called": "def part(*a, **k):\n    raise KeyboardInterrupt",
    "generator exit": "def part(*a, **k):\n    raise GeneratorExit",
    "a class of another kind": "class part:\n    pass",
}
_GROUPS = {"cost": "cost_models", "allocator": "allocators", "scheduler": "schedulers", "policy": "policies",
           "router": "routers", "gpu": "gpus"}  # fmt: skip


def _plugin(rng: random.Random) -> Case:
    what = rng.choice(list(_PLUGINS))
    option = rng.choice(("cost", "allocator", "scheduler", "policy", "router", "gpu", "cost", "allocator"))
    files: dict[str, Content] = {
        "site/hostile_part.py": _PLUGINS[what].encode(),
        "site/hostile_part-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hostile-part\nVersion: 1\n",
        "site/hostile_part-1.dist-info/entry_points.txt": (
            f"[pagesim.{_GROUPS[option]}]\nhostile = hostile_part:part\n".encode()
        ),
    }
    command = ("run", "--replicas", "2") if option == "router" else ("run",)
    argv = (*command, "--trace", "fixed:20,5", "--num-requests", "5", "--rate", "2", f"--{option}", "hostile")
    return _case("a plug-in", argv, "refused", files=files, env={"PYTHONPATH": "{}/site:{PYTHONPATH}"})


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    _matplotlibrc, _encoding, _out, _plugin, _locale, _backend, _terminal, _stdout, _out, _page, _plugin,
    _variables, _working_folder, _jobs, _out, _encoding, _plugin, _page, _matplotlib, _ray, _shadow,
    _terminal,
    _out, _page, _variables,
)  # fmt: skip
