"""What a session was given: options checked, and a warning by name for each that has no effect."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.options import SPEED_ONLY_KEYS, OptLevel, RunOptions, SessionOptions
from pyflame_rt.providers import DEFAULT_PROVIDER, Provider, native_engine_missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "check_arguments",
    "settled_options",
    "unused_run_settings",
    "unused_settings",
    "warn_arguments",
    "warn_unused",
]

# Accepted because programs for other runtimes set them; no provider here has what they steer.
_NOWHERE = {
    "enable_cpu_mem_arena": "the memory of a plan is always one arena",
    "enable_mem_pattern": "the memory of a plan is always laid out beforehand",
    "enable_mem_reuse": "values that do not live at the same time always share memory",
    "log_verbosity_level": "log_level alone decides what is logged",
    "use_per_session_threads": "the sessions of a process always share its threads",
}
_NATIVE_ONLY = (
    "cache",
    "checked",
    "execution_mode",
    "fast_math",
    "inter_op_num_threads",
    "num_threads",
    "quick_start",
    "strict_math_mode",
    "tune",
)
_OF_PASSES = ("disabled_optimizers", "optimization_timeout_ms", "verbose_optimization", "verify")
_CALIBRATION = ("calibration_batches", "calibration_data")


def unused_settings(options: SessionOptions, provider: Provider) -> list[str]:
    """One sentence for each setting that is valid but that nothing makes use of; it names the setting.

    Example:
        >>> from pyflame_rt.providers import find_provider
        >>> unused_settings(SessionOptions(num_threads=2), find_provider("ReferenceExecutionProvider"))
        ['num_threads=2 has no effect: ReferenceExecutionProvider makes no use of it']
    """
    if not provider.builtin:
        return []
    plain = SessionOptions()
    given = {name for name in SessionOptions.__slots__ if not name.startswith("_")}
    given = {name for name in given if getattr(options, name) != getattr(plain, name)}
    reasons = {name: why for name, why in _NOWHERE.items() if name in given}
    if provider.name != DEFAULT_PROVIDER or native_engine_missing():
        reasons |= {name: f"{provider.name} makes no use of it" for name in _NATIVE_ONLY if name in given}
    elif options.inter_op_num_threads > 1 and options.execution_mode != "parallel":
        reasons["inter_op_num_threads"] = 'execution_mode is not "parallel"'
    if not provider.optimizes or OptLevel.of(options.optimization_level) is OptLevel.NONE:
        reasons |= {name: "no optimisation passes run" for name in _OF_PASSES if name in given}
    if (why := _uncalibrated(options.quantization)) is not None:
        reasons |= {name: why for name in _CALIBRATION if name in given}
    told = [f"{name}={getattr(options, name)!r} has no effect: {why}" for name, why in sorted(reasons.items())]
    return told + _unused_entries(options._config)


def _uncalibrated(quantization: Any) -> str | None:
    """Why calibration has no part in a session; None where it has."""
    if quantization is None:
        return "quantization is not set"
    mode = getattr(getattr(quantization, "mode", None), "name", "StaticInt8")
    return None if mode in ("StaticInt8", "WeightOnly") else f"quantization is {mode}, which needs no calibration"


def unused_run_settings(options: RunOptions) -> list[str]:
    """The same for the settings of a run."""
    told = _unused_entries(options._config)
    if options.log_verbosity_level:
        told.append(
            f"log_verbosity_level={options.log_verbosity_level} has no effect: {_NOWHERE['log_verbosity_level']}"
        )
    return told


def _unused_entries(entries: dict[str, str]) -> list[str]:
    return [
        f"configuration entry {key!r} = {value!r} has no effect: it would only choose another way"
        for key, value in entries.items()
        if SPEED_ONLY_KEYS.get(key, value) != value
    ]


def settled_options(options: Any, sess_options: Any) -> SessionOptions:
    """A copy of the options a session was given under either name, checked."""
    if options is not None and sess_options is not None:
        raise InputError("give options or sess_options, not both: they are two names of one thing")
    chosen = sess_options if options is None else options
    if chosen is None:
        return SessionOptions()
    if not isinstance(chosen, SessionOptions):
        raise TypeError(f"options must be a SessionOptions, got {type(chosen).__name__}")
    problems = chosen.validate()
    if problems:
        raise InputError("invalid session options: " + "; ".join(problems))
    return chosen.copy()


def check_arguments(kwargs: dict[str, Any]) -> Sequence[str]:
    """Refuse what ``InferenceSession`` does not take; passes and rules that are to be left out."""
    if kwargs.pop("enable_fallback", False):
        raise InputError("enable_fallback: a run never changes provider; list the providers to try in providers=")
    disabled = kwargs.pop("disabled_optimizers", None) or ()
    if kwargs:
        raise TypeError(f"InferenceSession has no argument {next(iter(kwargs))!r}")
    return disabled


def warn_unused(texts: Iterable[str], depth: int) -> None:
    """Warn, at the caller's line; Python shows a warning once for each line and text."""
    for text in texts:
        warnings.warn(text, UserWarning, stacklevel=depth + 1)


def warn_arguments(owner: str, arguments: dict[str, Any], depth: int) -> None:
    """The same for arguments that another runtime would ignore."""
    warn_unused([f"{owner} has no argument {name!r}: it has no effect" for name in arguments], depth + 1)
