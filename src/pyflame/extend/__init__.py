"""Extensions: functions with gradients of their own, custom operators, plugins."""

from pyflame.extend.custom import (
    CustomOp,
    clear_custom_ops,
    custom_op,
    get_custom_op,
    list_custom_ops,
    register_custom_op,
    unregister_custom_op,
)
from pyflame.extend.function import AutogradFunction, FunctionContext
from pyflame.extend.plugins import (
    Plugin,
    PluginInfo,
    PluginManager,
    discover_plugins,
    get_plugin,
    list_plugins,
    load_plugin,
    register_plugin,
    unload_plugin,
)

__all__ = [
    "AutogradFunction",
    "CustomOp",
    "FunctionContext",
    "Plugin",
    "PluginInfo",
    "PluginManager",
    "clear_custom_ops",
    "custom_op",
    "discover_plugins",
    "get_custom_op",
    "get_plugin",
    "list_custom_ops",
    "list_plugins",
    "load_plugin",
    "register_custom_op",
    "register_plugin",
    "unload_plugin",
    "unregister_custom_op",
]
