"""Exceptions under the names ONNX Runtime gives them, and how ours become them."""

from __future__ import annotations

from pyflame_rt.graph.errors import (
    BackendError,
    DTypeMismatchError,
    InputError,
    InvalidModelError,
    ModelNotFoundError,
    PyFlameRTError,
    RunCancelledError,
    SessionClosedError,
    ShapeMismatchError,
    UnsupportedFormatError,
    UnsupportedOperatorError,
    ValidationError,
)

__all__ = [
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
    "translate",
]


class _OrtError(Exception):
    """Base of the exceptions here; ONNX Runtime has no common base of its own."""

    code = 0
    label = ""

    @classmethod
    def of(cls, message: str) -> _OrtError:
        """With ONNX Runtime's prefix."""
        return cls(f"[ONNXRuntimeError] : {cls.code} : {cls.label} : {message}")


class Fail(_OrtError):
    """Something failed."""

    code, label = 1, "FAIL"


class InvalidArgument(_OrtError):
    """A feed, name or argument is wrong.

    Example:
        >>> str(InvalidArgument.of("Invalid input name: z"))
        '[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid input name: z'
    """

    code, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(_OrtError):
    """There is no such model file."""

    code, label = 3, "NO_SUCHFILE"


class NoModel(_OrtError):
    """No model was loaded."""

    code, label = 4, "NO_MODEL"


class EngineError(_OrtError):
    """The engine failed."""

    code, label = 5, "ENGINE_ERROR"


class RuntimeException(_OrtError):
    """A node failed."""

    code, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(_OrtError):
    """The bytes are no protobuf."""

    code, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(_OrtError):
    """A model was loaded already."""

    code, label = 8, "MODEL_LOADED"


class NotImplemented(_OrtError):  # noqa: A001 - ONNX Runtime's name
    """An operator has no implementation."""

    code, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(_OrtError):
    """The graph is not valid."""

    code, label = 10, "INVALID_GRAPH"


class EPFail(_OrtError):
    """An execution provider failed."""

    code, label = 11, "EP_FAIL"


class ModelLoadCanceled(_OrtError):
    """Loading was cancelled."""

    code, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(_OrtError):
    """The model must be compiled first."""

    code, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(_OrtError):
    """Something named was not found."""

    code, label = 14, "NOT_FOUND"


def translate(error: PyFlameRTError, *, loading: bool = False) -> Exception:
    """The exception ONNX Runtime raises where we raise ``error``.

    Example:
        >>> translate(ModelNotFoundError("no file")).label
        'NO_SUCHFILE'
    """
    text = str(error)
    match error:
        case ModelNotFoundError():
            return NoSuchFile.of(f"Load model failed: {text}. File doesn't exist")
        case ValidationError():
            return InvalidGraph.of(f"This is an invalid model. {text}")
        case InvalidModelError():
            return _invalid_model(error, text)
        case UnsupportedOperatorError():
            return _unknown_operator(text)
        case RunCancelledError():
            kind = ModelLoadCanceled if loading else Fail
            return kind.of(f"Exiting due to terminate flag being set to true. ({text})")
        case UnsupportedFormatError():
            return Fail.of(text)
        case InputError() | DTypeMismatchError() | ShapeMismatchError() if not text.startswith("node "):
            return InvalidArgument.of(text)
        case BackendError() | SessionClosedError() | ShapeMismatchError() | DTypeMismatchError() | InputError():
            return RuntimeException.of(text)
        case _:
            return Fail.of(text)


def _invalid_model(error: BaseException, text: str) -> _OrtError:
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "DecodeError":
            return InvalidProtobuf.of("Failed to load model because protobuf parsing failed.")
        cause = cause.__cause__
    if "holds no graph" in text:
        return InvalidArgument.of("No graph was found in the protobuf.")
    return InvalidGraph.of(f"This is an invalid model. {text}")


def _unknown_operator(text: str) -> _OrtError:
    # ONNX Runtime tells operators it does not know from domains it does not know.
    if "operator " in text and "::" in text.split(" is not supported")[0]:
        return Fail.of(f"{text} (not a registered function/op)")
    return InvalidGraph.of(f"This is an invalid model. Error No Op registered: {text}")
