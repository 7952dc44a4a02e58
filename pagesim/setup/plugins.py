"""Plug-ins: third-party parts by name, registered in Python or found through entry points."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getdoc
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Generic, TypeVar

from pagesim.errors import PagesimError, reason

T = TypeVar("T")
R = TypeVar("R")

ENDS = (Exception, SystemExit, GeneratorExit)
"""Exceptions attributed to a plug-in: all but an interrupt, which comes from the user."""

HOMES = {
    "policy": "pagesim.setup.presets",
    "scheduler": "pagesim.setup.registry",
    "allocator": "pagesim.setup.registry",
    "cost": "pagesim.costs.parse",
    "gpu": "pagesim.hardware",
    "router": "pagesim.experiments.clusters",
    "eviction": "pagesim.eviction",
}
"""The options that name a part, each with the module that defines its parts."""

_KINDS: dict[str, Plugins[Any]] = {}


class Plugins(Generic[T]):
    """The parts of one kind, by name: pagesim's own, registered ones and installed ones.

    Args:
        option: option that names a part, such as ``allocator``.
        group: entry point group in which installed packages offer parts.
        own: parts that come with pagesim; they cannot be replaced.
        base: base class of registered parts, if the parts are classes.
        methods: required methods of what a part makes when `make` calls it.
        sentences: one description for each of ``own``, for listings.
    """

    def __init__(
        self,
        option: str,
        group: str,
        own: Mapping[str, T],
        base: type | None = None,
        methods: tuple[str, ...] = (),
        sentences: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.option = option
        self.group = group
        self._own = own
        self._base = base
        self._methods = methods
        self._sentences = sentences
        self._registered: dict[str, T] = {}
        _KINDS[option] = self

    def names(self) -> tuple[str, ...]:
        """Return every name, pagesim's own first."""
        return tuple(dict.fromkeys((*self._own, *self._registered, *self._installed())))

    def sentence(self, name: str) -> str:
        """Return a one-line description of the named part; for a plug-in, its docstring's first line."""
        if name in self._own:
            return self._sentences[name]
        return (getdoc(self.find(name)) or "").partition("\n")[0]

    def own(self) -> tuple[str, ...]:
        """Return the names of the parts that come with pagesim."""
        return tuple(self._own)

    def owns(self, name: str) -> bool:
        """Return whether the named part comes with pagesim."""
        return name in self._own

    def foreign(self) -> tuple[str, ...]:
        """Return the names of the parts that do not come with pagesim."""
        return tuple(name for name in self.names() if name not in self._own)

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._registered or name in self._installed()

    def register(self, name: str, part: T) -> None:
        """Add a part for the lifetime of this process, or replace a registered one.

        Raises:
            PagesimError: pagesim has its own part of that name, or the part is of the wrong kind.
        """
        if name in self._own:
            raise PagesimError(f"{self.option} {name} comes with pagesim; register yours under another name")
        self._registered[name] = self._checked(name, part)

    def find(self, name: str) -> T:
        """Return the named part.

        Raises:
            PagesimError: there is none of that name, or it cannot be loaded.
        """
        for known in (self._own, self._registered):
            if name in known:
                return known[name]
        point = self._installed().get(name)
        if point is None:
            raise PagesimError(f"{self.option} is {name!r}; it must be one of {', '.join(self.names())}")
        try:
            part = point.load()
        except ENDS as error:
            raise PagesimError(
                f"{self.option} {name}: {point.value} cannot be loaded ({_in_words(error)})"
            ) from error
        return self._checked(name, part)

    def make(self, name: str, call: Callable[[T], R]) -> R:
        """Return what ``call`` makes of the named part; errors of a plug-in name the plug-in.

        Raises:
            PagesimError: there is no such part, or a plug-in raised an error or made the wrong object.
        """
        part = self.find(name)
        if name in self._own:
            return call(part)
        try:
            made = call(part)
            _refuse_abstract(made)
        except PagesimError:
            raise
        except ENDS as error:
            raise PagesimError(f"{self.option} {name} cannot be made: {_in_words(error)}") from error
        for method in self._methods:
            if not callable(getattr(made, method, None)):
                raise PagesimError(
                    f"{self.option} {name} makes a {type(made).__name__}, which has no method {method}; it "
                    f"must have {' and '.join(self._methods)}"
                )
        return made

    def origin(self, name: str) -> str | None:
        """Return in words where a part comes from, for a file; None for pagesim's own and unknown parts."""
        if name in self._own:
            return None
        if name in self._registered:
            return f"registered in Python from module {_module_of(self._registered[name])}"
        point = self._installed().get(name)
        if point is None:
            return None
        package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
        return f"{point.value}{package}"

    def source(self, name: str) -> str | None:
        """Return an installed part's origin and a hash of its code; None for pagesim's own and unknown parts.

        Stored results are identified by this.

        Raises:
            PagesimError: the part was registered in this process, so other processes lack it.
        """
        if name in self._registered:
            raise PagesimError(
                f"{self.option} {name} was registered in this process, and a sweep's workers are others; "
                f"install it with an entry point in {self.group}"
            )
        point = self._installed().get(name)
        if point is None or name in self._own:
            return None
        self.find(name)
        return f"{self.origin(name)} {_code(point.module)}"

    def _checked(self, name: str, part: Any) -> T:
        """Return a third-party part after checking that it is of the same kind as pagesim's own."""
        own = next(iter(self._own.values()))
        if self._base is not None:
            fits = isinstance(part, type) and issubclass(part, self._base)
            wanted = f"a subclass of {self._base.__name__}"
        elif callable(own):
            fits, wanted = callable(part), "something to call"
        else:
            fits, wanted = isinstance(part, type(own)), f"a {type(own).__name__}"
        if fits:
            found: T = part
            return found
        raise PagesimError(f"{self.option} {name} is a {type(part).__name__}; it must be {wanted}")

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def blamed(trace: TracebackType | None) -> str | None:
    """Return the innermost plug-in and line that an error passed through; None if it passed through none."""
    found = None
    points = {
        point.module.partition(".")[0]: f"{kind.option} {name}"
        for kind in _KINDS.values()
        for name, point in kind._installed().items()
        if point.module in sys.modules
    }
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        part = points.get(module.partition(".")[0])
        if part is not None:
            found = f"{part} ({module}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def plugins(option: str) -> Plugins[Any]:
    """Return the parts that an option of ``HOMES`` may name."""
    # Higher-level packages define them; commands that need none should not wait for their imports.
    import_module(HOMES[option])
    return _KINDS[option]


def register(option: str, name: str, part: Any) -> None:
    """Register a part of your own under a name for the lifetime of this process; call again to replace it.

    Args:
        option: kind of the part, and the option that can name it from now on: ``policy``, ``scheduler``,
            ``allocator``, ``cost``, ``gpu``, ``router`` or ``eviction``.
        name: name of the part, such as ``worst-fit``; not one that comes with pagesim.
        part: for ``policy`` a `Policy`, for ``gpu`` a ``GpuSpec``, for ``scheduler`` a subclass of
            ``Scheduler``, whose ``Options`` become options of `simulate`; for the others what makes
            one: an ``Allocator`` or ``MakeBlockManager``, a ``MakeCost``, a class of routers, or a
            subclass of ``EvictionPolicy``. See ``docs/how-to/extending.md``.

    Raises:
        PagesimError: the option does not exist, pagesim has a part of that name, or its kind is wrong.

    Example:
        >>> import pagesim as ps
        >>> ps.register("policy", "paged-oracle", ps.Policy("orca", "oracle", "paged", "blocks, all at once"))
        >>> ps.simulate("fixed:100,20", "paged-oracle").summary["requests"]["finished"]
        1000
    """
    if option not in HOMES:
        raise PagesimError(f"option is {option!r}; a part is registered for one of {', '.join(HOMES)}")
    plugins(option).register(name, part)


def needs(used: Iterable[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Return the origin of each part that is not pagesim's own, by option and name.

    Args:
        used: (option, name) of each part of a system.
    """
    found: dict[str, dict[str, str]] = {}
    for option, name in used:
        origin = plugins(option).origin(name)
        if origin is not None:
            found.setdefault(option, {})[name] = origin
    return found


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {reason(error)}"


def _refuse_abstract(instance: object) -> None:
    """Refuse an instance whose class does not override a method that is abstract in its base class.

    ``ABC`` would do so, but once compiled, classes derived from it share the cache of ``isinstance``.

    Raises:
        TypeError: a method is missing; the message names all of them.
    """
    kind: Any = type(instance)
    names = [
        name
        for base in kind.__mro__
        for name in vars(base).get("MUST_OVERRIDE", ())
        if getattr(kind, name) is vars(base)[name]
    ]
    if names:
        raise TypeError(
            f"class {kind.__name__} needs a method {', '.join(names)}, abstract in its base class"
        )


def _module_of(part: object) -> str:
    part = getattr(part, "make", part)  # unwrap an allocator of layer types
    return getattr(part, "__module__", None) or type(part).__module__


@cache
def _code(module: str) -> str:
    """Return a hash of the code of a module's top-level package, or of the module itself if it has none."""
    top = Path(getattr(sys.modules[module.partition(".")[0]], "__file__", None) or "")
    files = sorted(top.parent.rglob("*.py")) if top.name == "__init__.py" else [top]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(str(file.relative_to(top.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
