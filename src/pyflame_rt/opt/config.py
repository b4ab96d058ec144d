"""Settings of the passes."""

from __future__ import annotations

from dataclasses import field

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.names import AliasedEnum
from pyflame_rt.graph.records import dataclass
from pyflame_rt.options import OptLevel

__all__ = [
    "CSEConfig",
    "ConstantFoldingConfig",
    "DCEConfig",
    "FusionConfig",
    "Layout",
    "LayoutConfig",
    "PassManagerConfig",
]

BACKENDS = ("cpu", "reference", "wse", "wse2", "wse3")


class Layout(AliasedEnum):
    """Order of the axes of images in memory.

    Example:
        >>> Layout.NHWC.value
        'NHWC'
    """

    NCHW = "NCHW"
    NHWC = "NHWC"
    NC4HW4 = "NC4HW4"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class ConstantFoldingConfig:
    """What constant folding computes.

    Attributes:
        max_tensor_bytes: larger results are left to the run.
        fold_shape_ops: also what depends on sizes alone, where those are known (Shape, Gather of it, ...).
        fold_expensive_ops: also products, convolutions and weights kept in few bits.
        exclude_ops: operators that are never folded, by name.

    Example:
        >>> ConstantFoldingConfig(exclude_ops=["Concat"]).max_tensor_bytes
        16777216
    """

    max_tensor_bytes: int = 16 * 1024 * 1024
    fold_shape_ops: bool = True
    fold_expensive_ops: bool = False
    exclude_ops: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DCEConfig:
    """What dead code elimination removes besides nodes nobody reads.

    Attributes:
        remove_initializers: constants nobody reads.
        remove_identity: Identity nodes.
        remove_dropout: Dropout nodes that do nothing when a model is not trained.

    Example:
        >>> DCEConfig(remove_dropout=False).remove_identity
        True
    """

    remove_initializers: bool = True
    remove_identity: bool = True
    remove_dropout: bool = True


@dataclass(slots=True)
class CSEConfig:
    """How equal computations are found.

    Attributes:
        check_attributes: compare attributes; False leaves nodes that have any alone.
        max_comparisons: nodes of the same operator and inputs that each one is compared with.

    Example:
        >>> CSEConfig().max_comparisons
        10000
    """

    check_attributes: bool = True
    max_comparisons: int = 10_000


@dataclass(slots=True)
class FusionConfig:
    """Which groups of operators become one.

    Attributes:
        fuse_conv_bn: a batch normalisation goes into the weights of the convolution before it.
        fuse_conv_bn_activation: an activation joins a convolution or normalisation.
        fuse_matmul_add: a product of matrices and what is added to it become Gemm.
        fuse_elementwise_activation: sums followed by Relu, products followed by a sum.
        fuse_activations: Gelu, Swish, HardSwish and the like as exporters write them out.
        fuse_normalization: LayerNormalization and RMSNormalization as exporters write them out.
        fuse_attention: attention and rotary embeddings as exporters write them out.
        check_backend_support: fuse only into operators that the target can run.
        target_backend: "cpu", "reference", "wse", "wse2" or "wse3". All run every fused operator, since compositions
            open everywhere: another than "cpu" is told by a warning of the result.
        strict_math: only rules that keep every bit of the reference's answer.
        portable: only into operators of ONNX.
        disabled: names of rules that are not applied.

    Example:
        >>> FusionConfig(fuse_conv_bn=False).target_backend
        'cpu'
    """

    fuse_conv_bn: bool = True
    fuse_conv_bn_activation: bool = True
    fuse_matmul_add: bool = True
    fuse_elementwise_activation: bool = True
    fuse_activations: bool = True
    fuse_normalization: bool = True
    fuse_attention: bool = True
    check_backend_support: bool = True
    target_backend: str = "cpu"
    strict_math: bool = False
    portable: bool = False
    disabled: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LayoutConfig:
    """Which order of axes convolutions prefer.

    Attributes:
        conv_layout: NCHW leaves convolutions as ONNX has them; Layout.UNKNOWN leaves the graph alone.
        insert_transposes: bring values into that order where they are not; False changes nothing.
        propagate_layout: keep the order through the elementwise operators between convolutions.
        target_backend: "cpu", "reference", "wse", "wse2" or "wse3". Layouts are the same for all: another than "cpu"
            is told by a warning of the result.

    Example:
        >>> LayoutConfig(conv_layout=Layout.NHWC).propagate_layout
        True
    """

    conv_layout: Layout = Layout.NCHW
    insert_transposes: bool = True
    propagate_layout: bool = True
    target_backend: str = "cpu"


@dataclass(slots=True)
class PassManagerConfig:
    """How passes are run.

    Attributes:
        opt_level: passes that belong to a higher level are left out.
        max_iterations: how often all passes run at most, until none changes anything.
        verbose: log what each pass did.
        validate_after_pass: check the graph after each pass; a fault names the pass and the node.
        skip_passes: names of passes that are left out.
        only_passes: names of the only passes to run; all when empty.
        timeout_ms: begin no further pass after this time; 0 for no limit.

    Example:
        >>> PassManagerConfig(skip_passes=["CSE"]).max_iterations
        10
    """

    opt_level: OptLevel = OptLevel.EXTENDED
    max_iterations: int = 10
    verbose: bool = False
    validate_after_pass: bool = False
    skip_passes: list[str] = field(default_factory=list)
    only_passes: list[str] = field(default_factory=list)
    timeout_ms: float = 0.0


def check_backend(config: FusionConfig | LayoutConfig) -> list[str]:
    """What is to be told of a target: an unknown one is refused, one that makes no difference gives a warning."""
    name = config.target_backend
    if name not in BACKENDS:
        raise InputError(f"target_backend is {name!r}, not one of {', '.join(BACKENDS)}")
    told = f"{type(config).__name__}.target_backend={name!r} makes no difference: the graph is changed alike for all"
    return [] if name == "cpu" else [told]
