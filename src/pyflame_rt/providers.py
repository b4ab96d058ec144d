"""Execution providers: the names under which backends are asked for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.base import Backend, BackendAdapter, Compiler
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import BackendError, InputError, MissingExtra
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.names import closest
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEFAULT_PROVIDER",
    "Provider",
    "expect_model",
    "find_provider",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_device_count",
    "normalize_providers",
    "register_backend",
    "unregister_backend",
]

DEFAULT_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider: how to make its compiler, and what it needs.

    Attributes:
        name: such as ``TorchExecutionProvider``.
        make: gives the compiler.
        requires: the module it needs, or "".
        about: what it is.
        describe: the same where it depends on the machine.
        optimizes: False where the graph runs exactly as loaded.
        general: False where only some operators run, or far from the speed of the machine.
        settings: names of the options it takes.
    """

    name: str
    make: Callable[[], Compiler]
    requires: str = ""
    about: str = ""
    optimizes: bool = False
    builtin: bool = True
    describe: Callable[[], str] | None = None
    general: bool = True
    settings: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What ``explain()`` says about it."""
        return self.about if self.describe is None else self.describe()

    def check_settings(self, given: dict[str, Any]) -> None:
        """Refuse options that a built-in provider does not take."""
        if self.builtin and set(given) - set(self.settings):
            only = f"only the options {', '.join(self.settings)}" if self.settings else "no options"
            raise InputError(f"{self.name} takes {only}, got {given}")

    @property
    def available(self) -> bool:
        """True when what it needs is installed."""
        return not self.requires or _is_installed(self.requires)


def _is_installed(module: str) -> bool:
    return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None


def _reference(library: str) -> Callable[[], Compiler]:
    def make() -> Compiler:
        from pyflame_rt.backends.reference import ReferenceBackend

        return ReferenceBackend(library)

    return make


def native_engine_missing() -> str:
    """Why the native engine cannot be used here; empty when it can."""
    return "" if _is_installed("llvmlite") else "llvmlite is not installed"


def prepare_default() -> None:
    """Load the libraries of the default provider, and everything else that does not depend on the model."""
    if native_engine_missing():
        return
    from pyflame_rt.backends.cpu.run.startup import prepare

    prepare()


def expect_model(names: Sequence[str], options: Any) -> None:
    """A model for one of these providers is about to be loaded: do beside that what every model needs."""
    if DEFAULT_PROVIDER not in names or native_engine_missing():
        return
    from pyflame_rt.backends.cpu.run.startup import expect

    expect(options)


def _cpu() -> Compiler:
    if native_engine_missing():
        from pyflame_rt.backends.reference import ReferenceBackend

        return ReferenceBackend("numpy")
    from pyflame_rt.backends.cpu.run.executable import CpuBackend

    return CpuBackend()


def _cpu_note() -> str:
    missing = native_engine_missing()
    if missing:
        return f"served by the reference interpreter on NumPy: {missing}"
    from pyflame_rt.backends.cpu.onednn import library

    kernels = "oneDNN primitives and generated kernels" if library.available() else "generated kernels, without oneDNN"
    return f"native code: {kernels}, one call for the whole graph"


def _wse() -> Compiler:
    from pyflame_rt.backends.wse.executable import WseBackend

    return WseBackend()


_providers: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider(
            DEFAULT_PROVIDER,
            _cpu,
            describe=_cpu_note,
            optimizes=True,
        ),
        Provider("TorchExecutionProvider", _reference("torch"), "torch", "the reference interpreter on PyTorch"),
        Provider("MLXExecutionProvider", _reference("mlx"), "mlx", "the reference interpreter on MLX"),
        Provider("ReferenceExecutionProvider", _reference("numpy"), about="the reference interpreter on NumPy"),
        Provider(
            "WSEExecutionProvider",
            _wse,
            about="generated CSL in a simulator of the wafer",
            general=False,
            settings=("cols", "max_passes", "memory_budget", "optimize", "products", "rows", "target"),
        ),
    )
}


def get_available_providers() -> list[str]:
    """Names of the providers that can run here, the fastest first: a session given all of them runs on that one.

    Example:
        >>> get_available_providers()[0]
        'CPUExecutionProvider'
    """
    return [name for name, provider in _providers.items() if provider.available]


def get_all_providers() -> list[str]:
    """Names of all providers, also of those whose library is not installed.

    Example:
        >>> get_all_providers()[:2]
        ['CPUExecutionProvider', 'TorchExecutionProvider']
    """
    return list(_providers)


def get_device() -> str:
    """The device sessions use unless told otherwise.

    Example:
        >>> get_device()
        'CPU'
    """
    return "CPU"


def get_device_count(kind: str = "cpu") -> int:
    """How many devices of a kind there are: "cpu", "gpu", "wse", "wse2" or "wse3".

    Example:
        >>> get_device_count("cpu")
        1
    """
    counts = {"cpu": 1, "gpu": 0, "wse": 0, "wse2": 0, "wse3": 0}
    try:
        return counts[str(kind).lower()]
    except KeyError:
        raise InputError(f"device type {kind!r} is not known. Types: {', '.join(counts)}") from None


@names_arguments
def register_backend(name: str, factory: Callable[[], Backend | Compiler]) -> None:
    """Offer a backend as a provider.

    Args:
        name: the name to ask for in ``providers=[...]``; registering again replaces.
        factory: called once for each session; gives a Backend, or an object with
            ``compile(graph, options)``. See :class:`pyflame_rt.Backend` for an example.
    """
    known = _providers.get(name)
    if known is not None and known.builtin:
        raise InputError(f"provider {name!r} is built in; register the backend under another name")

    def make() -> Compiler:
        made: Any = factory()
        return BackendAdapter(made) if isinstance(made, Backend) else made

    _providers[name] = Provider(name, make, about="registered with register_backend", builtin=False)


@names_arguments
def unregister_backend(name: str) -> None:
    """Forget a backend that was registered; sessions that use it go on."""
    known = _providers.get(name)
    if known is None or known.builtin:
        raise InputError(f"no registered backend is called {name!r}")
    del _providers[name]


def find_provider(name: str) -> Provider:
    """The provider of that name.

    Raises:
        BackendError: No such provider is known.
        MissingExtra: It is known but its library is not installed.

    Example:
        >>> find_provider("CPUExecutionProvider").available
        True
    """
    provider = _providers.get(name)
    there = ", ".join(get_available_providers())
    if provider is None:
        close = closest(name, _providers)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise BackendError(f"there is no provider {name!r}.{hint} Available: {there}")
    if not provider.available:
        raise MissingExtra(
            f"{name} needs {provider.requires}: pip install 'pyflame[{provider.requires}]'. Available: {there}"
        )
    return provider


def normalize_providers(providers: Any, provider_options: Any = None) -> list[tuple[str, dict[str, Any]]]:
    """Names with options, from what sessions accept: names, (name, options) pairs, two lists.

    Example:
        >>> normalize_providers(["CPUExecutionProvider"])
        [('CPUExecutionProvider', {})]
    """
    if not isinstance(providers or (), (str, Iterable)):
        raise TypeError(f"providers is a list of names, got {providers!r}")
    given = [providers] if isinstance(providers, str) else list(providers or ())
    pairs = [(p, {}) if isinstance(p, str) else p for p in given]
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InputError(f"a provider is a name or a (name, options) pair, got {pair!r}")
    if provider_options is None:
        return [(name, dict(options)) for name, options in pairs]
    expect(provider_options, Sequence, "provider_options")
    for options in provider_options:
        expect(options, Mapping, "an entry of provider_options")
    if len(provider_options) != len(pairs):
        raise InputError(f"{len(pairs)} providers but {len(provider_options)} provider_options")
    if any(options for _, options in pairs):
        raise InputError("give options in providers or in provider_options, not in both")
    return [(pair[0], dict(options)) for pair, options in zip(pairs, provider_options, strict=True)]
