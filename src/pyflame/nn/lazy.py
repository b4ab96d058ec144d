"""Layers that learn the size of their input from the first one they see, and do what ordinary layers do from then on.

Each is a subclass of the layer that it stands for, and stays of its class: `isinstance` tells the kind of a layer,
before and after. (torch changes the class of the object instead.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyflame.lazy import modes
from pyflame.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from pyflame.nn.linear import Linear
from pyflame.nn.making import filled
from pyflame.nn.module import Module
from pyflame.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from pyflame.nn.parameter import Parameter
from pyflame_rt.graph.errors import ShapeMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame.tensors import Tensor

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
]


class _Lazy(Module):
    """A layer whose parameters are made once the size of its input is known.

    Its parameters are there from the beginning, without elements, so that an optimizer can be made before the first
    input; they are the same objects afterwards.
    """

    becomes: ClassVar[type[Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)  # that of the layer would make parameters of a size
        self._settings: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)
        for name, member in self._layer(1)._parameters.items():
            empty = None if member is None else Parameter(filled([0], 0.0, member.dtype))
            self.register_parameter(name, empty)

    def _layer(self, size: int) -> Any:
        """The layer for inputs of a size."""
        args, kwargs = self._arguments()
        return self.becomes(size, *args, **kwargs)

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it was made with."""
        assert self._settings is not None
        return self._settings

    def _size_of(self, shape: Any) -> int:
        """What an input's shape says of the size."""
        raise NotImplementedError

    def _size_in(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """What the shapes of saved parameters say of it; None when they were saved before it was known."""
        raise NotImplementedError

    def has_uninitialized_params(self) -> bool:
        """Whether the size is still unknown."""
        return self._settings is not None

    def initialize_parameters(self, input: Any) -> None:
        """Make the parameters for such inputs."""
        if modes.tracer is not None:
            from pyflame.compiling.tracer import TraceError

            raise TraceError(
                f"{type(self).__name__} has seen no input yet, so a compiled function cannot use it; "
                "call the module once before"
            )
        self._become(self._size_of(tuple(input.shape)))

    def _become(self, size: int) -> None:
        made, mine = self._layer(size), dict(self._parameters)
        for name, parameter in mine.items():
            if parameter is not None:
                parameter.data = made._parameters[name].data.to(parameter.dtype)
        for name, value in vars(made).items():
            if name not in vars(self):
                self.__dict__[name] = value
        dtype = next((p.dtype for p in mine.values() if p is not None), None)
        for name, buffer in made._buffers.items():
            if buffer is not None and dtype is not None and buffer.dtype.is_floating_point:
                buffer = buffer.to(dtype)
            self.register_buffer(name, buffer)
        self._settings = None

    def _sees_state(self, state: Mapping[str, tuple[int, ...]]) -> None:
        size = self._size_in(state) if self._settings is not None else None
        if size is not None:
            self._become(size)

    def forward(self, input: Any, *args: Any, **kwargs: Any) -> Tensor:
        """What the layer gives; the first input tells its size."""
        if self._settings is not None:
            self.initialize_parameters(input)
        return self.becomes.forward(self, input, *args, **kwargs)

    def _get_name(self) -> str:
        return super()._get_name() if self._settings is not None else self.becomes.__name__

    def extra_repr(self) -> str:
        """What is known: all but the size of the input, then that too."""
        if self._settings is None:
            return self.becomes.extra_repr(self)
        args, kwargs = self._settings
        return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])


class LazyLinear(_Lazy, Linear):
    """`Linear` whose `in_features` is the last size of the first input.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.LazyLinear(2)
        >>> layer(pf.ones([5, 3])).shape, layer
        ([5, 2], Linear(in_features=3, out_features=2, bias=True))
    """

    becomes = Linear

    def _size_of(self, shape: Any) -> int:
        return int(shape[-1])

    def _size_in(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        shape = shapes.get("weight", ())
        return shape[1] if len(shape) == 2 else None


class _LazyConv(_Lazy):
    def _size_of(self, shape: Any) -> int:
        rank = self.becomes.rank
        if len(shape) not in (rank + 1, rank + 2):
            raise ShapeMismatchError(
                f"{type(self).__name__} needs {rank + 1} or {rank + 2} dimensions. Received: {list(shape)}"
            )
        return int(shape[-rank - 1])

    def _layer(self, size: int) -> Any:
        """The layer; before the size is known, one that has as many channels as groups stands for it."""
        args, kwargs = self._arguments()
        groups = kwargs.get("groups", args[5] if len(args) > 5 else 1)
        return super()._layer(size if hasattr(self, "weight") else groups)

    def _size_in(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        shape = shapes.get("weight", ())
        if len(shape) != self.becomes.rank + 2:
            return None
        args, kwargs = self._arguments()
        groups = kwargs.get("groups", args[5] if len(args) > 5 else 1)
        return shape[0] if self.becomes.transposed else shape[1] * groups


class LazyConv1d(_LazyConv, Conv1d):
    """`Conv1d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConv1d(8, 3)(pf.ones([2, 3, 10])).shape
        [2, 8, 8]
    """

    becomes = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """`Conv2d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConv2d(8, 3)(pf.ones([2, 3, 8, 8])).shape
        [2, 8, 6, 6]
    """

    becomes = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """`Conv3d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConv3d(2, 2)(pf.ones([1, 1, 3, 3, 3])).shape
        [1, 2, 2, 2, 2]
    """

    becomes = Conv3d


class LazyConvTranspose1d(_LazyConv, ConvTranspose1d):
    """`ConvTranspose1d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConvTranspose1d(3, 2, stride=2)(pf.ones([1, 2, 4])).shape
        [1, 3, 8]
    """

    becomes = ConvTranspose1d


class LazyConvTranspose2d(_LazyConv, ConvTranspose2d):
    """`ConvTranspose2d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConvTranspose2d(3, 2, stride=2)(pf.ones([1, 2, 4, 4])).shape
        [1, 3, 8, 8]
    """

    becomes = ConvTranspose2d


class LazyConvTranspose3d(_LazyConv, ConvTranspose3d):
    """`ConvTranspose3d` whose `in_channels` are those of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyConvTranspose3d(1, 2)(pf.ones([1, 1, 1, 1, 1])).shape
        [1, 1, 2, 2, 2]
    """

    becomes = ConvTranspose3d


class _LazyNorm(_Lazy):
    def _size_of(self, shape: Any) -> int:
        ranks = self.becomes.ranks
        if len(shape) not in ranks:
            raise ShapeMismatchError(
                f"{type(self).__name__} needs {' or '.join(map(str, ranks))} dimensions. Received: {list(shape)}"
            )
        single = issubclass(self.becomes, (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)) and len(shape) == ranks[0]
        return int(shape[0 if single else 1])

    def _size_in(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        shape = shapes.get("running_mean", shapes.get("weight", (0,)))
        return shape[0] or None


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """`BatchNorm1d` whose `num_features` are the channels of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyBatchNorm1d()(pf.randn([4, 3])).shape
        [4, 3]
    """

    becomes = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """`BatchNorm2d` whose `num_features` are the channels of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyBatchNorm2d()(pf.randn([2, 3, 2, 2])).shape
        [2, 3, 2, 2]
    """

    becomes = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """`BatchNorm3d` whose `num_features` are the channels of the first input.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyBatchNorm3d()(pf.randn([2, 2, 2, 2, 2])).shape
        [2, 2, 2, 2, 2]
    """

    becomes = BatchNorm3d


class _LazyInstanceNorm(_LazyNorm):
    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        _Lazy.__init__(self, eps, momentum, affine, track_running_stats, **kwargs)


class LazyInstanceNorm1d(_LazyInstanceNorm, InstanceNorm1d):
    """`InstanceNorm1d` whose `num_features` are the channels of the first input; with scale, shift and statistics.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyInstanceNorm1d()(pf.randn([2, 3, 5])).shape
        [2, 3, 5]
    """

    becomes = InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, InstanceNorm2d):
    """`InstanceNorm2d` whose `num_features` are the channels of the first input; with scale, shift and statistics.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyInstanceNorm2d()(pf.randn([2, 3, 4, 4])).shape
        [2, 3, 4, 4]
    """

    becomes = InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, InstanceNorm3d):
    """`InstanceNorm3d` whose `num_features` are the channels of the first input; with scale, shift and statistics.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.LazyInstanceNorm3d()(pf.randn([2, 3, 2, 2, 2])).shape
        [2, 3, 2, 2, 2]
    """

    becomes = InstanceNorm3d
