"""Plugins: bundles of custom operators that are loaded and unloaded together."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from pyflame.extend.custom import list_custom_ops, register_custom_op, unregister_custom_op

__all__ = [
    "Plugin",
    "PluginInfo",
    "PluginManager",
    "discover_plugins",
    "get_plugin",
    "list_plugins",
    "load_plugin",
    "register_plugin",
    "unload_plugin",
]

# Installed packages name their plugins under this group of entry points.
GROUP = "pyflame.plugins"


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin says about itself."""

    name: str
    version: str = "0"
    description: str = ""
    author: str = ""
    dependencies: list[str] = field(default_factory=list)


class Plugin:
    """Base class of plugins.

    Example:
        >>> import pyflame as pf
        >>> class Extra(pf.extend.Plugin):
        ...     def get_info(self):
        ...         return pf.extend.PluginInfo("extra", "1.0")
        ...     def get_custom_ops(self):
        ...         return {"halve": lambda x: x / 2}
        >>> pf.extend.register_plugin(Extra())
        >>> pf.extend.load_plugin("extra").get_info().name, pf.extend.list_custom_ops()
        ('extra', ['halve'])
        >>> pf.extend.unload_plugin("extra")
    """

    def get_info(self) -> PluginInfo:
        """Name, version and description."""
        raise NotImplementedError("a plugin needs get_info()")

    def on_load(self) -> None:
        """Called when the plugin is loaded."""

    def on_unload(self) -> None:
        """Called when the plugin is unloaded."""

    def get_custom_ops(self) -> dict[str, Any]:
        """Operators by name: a function, or a pair of forward and backward."""
        return {}


class PluginManager:
    """Knows plugins, loads and unloads them."""

    def __init__(self) -> None:
        self._known: dict[str, Plugin] = {}
        self._loaded: dict[str, list[str]] = {}

    def register(self, plugin: Plugin) -> None:
        """Make a plugin known."""
        self._known[plugin.get_info().name] = plugin

    def discover_plugins(self) -> list[str]:
        """Make the plugins of installed packages known; their names."""
        found = []
        for point in entry_points(group=GROUP):
            made = point.load()
            plugin = made() if isinstance(made, type) else made
            self.register(plugin)
            found.append(plugin.get_info().name)
        return found

    def load(self, name: str) -> Plugin:
        """Load a plugin: its operators are there from now on."""
        plugin = self.get(name)
        if name in self._loaded:
            return plugin
        missing = [d for d in plugin.get_info().dependencies if d not in self._loaded]
        if missing:
            raise RuntimeError(f"plugin {name!r} needs {', '.join(missing)}, which is not loaded")
        plugin.on_load()
        ops = plugin.get_custom_ops()
        for op, made in ops.items():
            register_custom_op(op, *(made if isinstance(made, tuple) else (made,)))
        self._loaded[name] = list(ops)
        return plugin

    def unload(self, name: str) -> None:
        """Unload a plugin: its operators are gone."""
        plugin = self.get(name)
        for op in self._loaded.pop(name, []):
            if op in list_custom_ops():
                unregister_custom_op(op)
        plugin.on_unload()

    def get(self, name: str) -> Plugin:
        """The plugin of a name."""
        try:
            return self._known[name]
        except KeyError:
            raise KeyError(f"there is no plugin {name!r}. Known: {', '.join(sorted(self._known)) or 'none'}") from None

    def list(self) -> list[PluginInfo]:
        """What is known about all plugins."""
        return [self._known[name].get_info() for name in sorted(self._known)]


_manager = PluginManager()
register_plugin = _manager.register
load_plugin = _manager.load
unload_plugin = _manager.unload
get_plugin = _manager.get
list_plugins = _manager.list
discover_plugins = _manager.discover_plugins
