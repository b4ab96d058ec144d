"""Calls of operations that shape, index, multiply and convolve arrays."""

from collections.abc import Iterator

import numpy as np

from emberharmony.dtypes import INTEGER, as_dtype, kind
from tests.unit.emberharmony.pools import DTYPES, A, Call, edges, grid, mild, quiet, shaped

__all__ = ["indexing", "matrices", "networks", "products", "shaping"]


def shaping() -> Iterator[Call]:
    for dtype in DTYPES:
        for x in quiet(dtype):
            rank, count = x.values.ndim, x.values.size
            yield Call("reshape", (x, (-1,)))
            yield Call("reshape", (x, count))
            yield Call("reshape", (x, (count + 1,)))
            yield Call("reshape", (x, (-1, -1)))
            yield Call("reshape", (x, (1, -1, 1)))
            for axis in (0, -1, 1, 3, -4, (0, -1), (0, 0), ()):
                yield Call("expand_dims", (x, axis))
                yield Call("squeeze", (x, axis))
                yield Call("flip", (x, axis))
                yield Call("roll", (x, 2, axis))
            yield Call("squeeze", (x,))
            yield Call("flip", (x,))
            yield Call("roll", (x, 1))
            yield Call("roll", (x, (1, -1), (0, 1)))
            for one, two in ((0, 1), (-1, 0), (0, 3), (0, -4)):
                yield Call("swapaxes", (x, one, two))
                yield Call("moveaxis", (x, one, two))
            yield Call("moveaxis", (x, (0, 1), (-1, 0)))
            yield Call("moveaxis", (x, (0, 0), (0, 1)))
            for axes in (tuple(reversed(range(rank))), (0,), (0, 0), (0, 7), tuple(range(-rank, 0))):
                yield Call("transpose", (x, axes))
            for shape in ((2, *x.values.shape), (7,), (), (5, 3, 4), (0,)):
                yield Call("broadcast_to", (x, shape))
            for repeats in (2, 0, (2, 1), (1, 2, 1, 1), -1):
                yield Call("tile", (x, repeats))
            for repeats, axis in ((2, None), (0, 0), (2, -1), ([1, 2], 0), (2, 5), (-1, 0)):
                yield Call("repeat", (x, repeats), {"axis": axis})
            for parts, axis in ((2, 0), (1, -1), ([1, 2], 0), (0, 0), (2, 5), (5, 0), ([1, 9], 0), ([-1, 4], 0)):
                yield Call("split", (x, parts), {"axis": axis})
                yield Call("array_split", (x, parts), {"axis": axis})
            for axis in (0, -1, 1, 4):
                yield Call("unstack", (x,), {"axis": axis})
            yield Call("unstack", (x, 9))
            for k in (1, 2, -1, 5):
                yield Call("rot90", (x, k))
            yield Call("rot90", (x, 1, (0, 0)))
            for width in (1, (1, 2), [(0, 1)] * rank, [(0, 0)] * rank, -1, [(1, 1)] * 7):
                for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "odd"):
                    yield Call("pad", (x, width, mode))
            yield Call("pad", (x, 1, "constant", 300))
            yield Call("pad", (x, 1, "constant", -1.5))
            for window, axis in ((2, 0), (1, None), (9, 0), ((2, 2), (0, 1)), (2, 5), (0, 0)):
                yield Call("sliding_window_view", (x, window), {"axis": axis})
            for others in ([x], [x, x], [x, A(mild("float32", x.values.shape))], [x, A(mild(dtype, (7, 7)))], []):
                for op in ("concatenate", "stack"):
                    for axis in (0, -1, 1, 5):
                        yield Call(op, (others,), {"axis": axis})
                yield Call("concatenate", (others,), {"axis": None})
                yield Call("hstack", (others,))
                yield Call("vstack", (others,))
            yield Call("meshgrid", (x, A(mild(dtype, (2,)))))
            yield Call("meshgrid", (x,), {"indexing": "ij"})
            yield Call("meshgrid", (x, x), {"indexing": "odd"})
            for k in (0, 1, -1, 9):
                for op in ("tril", "triu", "diag", "diagonal", "trace"):
                    yield Call(op, (x, k))
            yield Call("diagonal", (x, 0, 0, 5))
            yield Call("diagonal", (x, 0, 1, 1))
            yield Call("trace", (x, 0, -1, 0))


def indexing() -> Iterator[Call]:
    for dtype in DTYPES:
        x, line = A(mild(dtype, (3, 4))), A(mild(dtype, (5,)))
        for kinds in ("int64", "int8", "uint8", "uint64", "int32"):
            at = A(np.array([2, 0, 2], as_dtype(kinds)))
            for axis in (None, 0, -1, 1, 2, -3):
                yield Call("take", (x, at), {"axis": axis})
                yield Call("gather", (x, at), {"axis": axis})
            yield Call("take_along_axis", (x, A(np.array([[0, 1, 2, 0]], as_dtype(kinds))), 0))
            yield Call("take_along_axis", (x, A(np.array([[3], [1], [0]], as_dtype(kinds))), -1))
            yield Call("index_put", (x, at, A(mild(dtype, (3, 4), 5))))
            yield Call("gather_nd", (x, A(np.array([[1, 2], [0, 3]], as_dtype(kinds)))))
        for at in (
            -1,
            -5,
            5,
            3,
            2**40,
            [0, 1],
            [],
            [[0], [2]],
            A(np.array([[0, 1], [2, 0]])),
            A(np.zeros((0,), np.int64)),
            1.5,
        ):
            for axis in (None, 0, 1):
                yield Call("take", (x, at), {"axis": axis})
            yield Call("take", (A(np.zeros((0, 4), as_dtype(dtype))), at, 0))
            yield Call("take", (A(np.zeros((0, 4), as_dtype(dtype))), at, 1))
            yield Call("take", (A(mild(dtype, ())), at))
            yield Call("take_along_axis", (line, at), {"axis": 0})
            yield Call("index_put", (x, at, A(mild(dtype, (4,), 3))), {"mode": "add"})
            yield Call("index_put", (line, at, 7))
        for mode in (None, "add", "mul", "max", "min", "odd"):
            yield Call("index_put", (x, A(np.array([2, 0])), A(mild(dtype, (2, 4), 5)), mode))
            yield Call("index_put", (line, A(np.array([2, -1])), A(edges(dtype)[:2]), mode))
            yield Call("scatter_nd", (x, A(np.array([[2], [0]])), A(mild(dtype, (2, 4), 5)), mode))
            yield Call("scatter_nd", (x, A(np.array([[2, -1]])), A(mild("float32", (1,), 5)), mode))
            yield Call("tensor_scatter_nd_update", (x, A(np.array([[2, 3]])), A(mild(dtype, (1,), 5)), mode))
            yield Call("scatter_update", (x, A(np.array([[5, 3]])), A(mild(dtype, (1,), 5)), mode))
            yield Call("put_along_axis", (x, A(np.array([[2, 0, 1, 1]])), A(mild(dtype, (1, 4), 5)), 0, mode))
            yield Call("put_along_axis", (x, A(np.array([[7, 0, 1, 1]])), 300, 0, mode))
            yield Call("put_along_axis", (x, A(np.array([[0]])), 1, 3, mode))
        if dtype != "bool":
            yield Call("index_put", (line, A(np.array([1, 1, 1])), A(mild(dtype, (3,), 5)), "add"))
        yield Call("scatter", (A(np.array([[2], [0], [2]])), A(mild(dtype, (3,))), (4,)))
        yield Call("scatter", (A(np.array([[4]])), A(mild(dtype, (1,))), (4,)))
        yield Call("gather_nd", (A(mild(dtype, (2, 3, 2))), A(np.array([[[1]], [[2]]]))), {"batch_dims": 1})
        yield Call("gather_nd", (x, A(np.array([[1, 2, 3]]))))
        yield Call("gather_nd", (x, A(np.array([[3, 0]]))))
        for start, update in (
            ([1, 1], (2, 2)),
            ([2, 3], (2, 2)),
            ([-1, 0], (1, 1)),
            ([0], (1, 1)),
            ([9, 9], (1, 1)),
            ([0, 0], (3, 4)),
        ):
            yield Call("slice_update", (x, start, A(mild(dtype, update, 3))))
        for one in (
            ([0, 1], [2, 3]),
            ([2], [None], [-1]),
            ([-9], [9]),
            ([5], [2]),
            ([0, 0, 0], [1, 1, 1]),
            ([0], [3], [0]),
        ):
            yield Call("slice", (x, *one))
        for k in (0, 1, 3, 9, -1):
            for axis in (0, -1, 5):
                yield Call("top_k", (x, k, axis))
            yield Call("top_k", (A(edges(dtype)), k), {"largest": False})
        for side in ("left", "right", "odd"):
            ordered = A(
                np.sort(mild(dtype, (5,)).astype(np.float64)).astype(as_dtype(dtype))
                if dtype != "complex64"
                else mild(dtype, (5,))
            )
            yield Call("searchsorted", (ordered, x, side))
            yield Call("searchsorted", (ordered, 300), {"side": side})
            yield Call("searchsorted", (ordered, A(edges(dtype))), {"side": side})
            yield Call("searchsorted", (x, line, side))
        yield Call("digitize", (x, line))
        yield Call("digitize", (A(edges(dtype)), A(np.array([0, 1, 5]))))
        for y in (*shaped(dtype), *quiet(dtype)):
            yield Call("unique", (y,))
        yield Call("unique", (A(np.resize(mild(dtype, (3,)), (4, 2))), True, True, True))
        yield Call("unique", (A(np.resize(mild(dtype, (3,)), (4, 2))),), {"axis": 0})
        yield Call("isin", (A(edges(dtype)), A(edges(dtype)[:3])))
        yield Call("isin", (x, []))
        yield Call("isin", (x, [1, 300, -1]))
        if kind(as_dtype(dtype)) in (INTEGER,):
            yield Call("bincount", (A(np.abs(mild(dtype, (5,)))),))
            yield Call(
                "bincount", (A(np.abs(mild(dtype, (5,)))),), {"minlength": 9, "weights": A(mild("float32", (5,)))}
            )
        yield Call("bincount", (line,))
        yield Call("bincount", (A(np.zeros((0,), np.int64)),), {"minlength": 2})
        for classes, axis in ((3, -1), (3, 0), (300, -1), (0, -1), (2, 5), (-1, -1)):
            yield Call("one_hot", (line, classes), {"axis": axis})
            yield Call("one_hot", (A(edges(dtype)), classes), {"axis": axis, "dtype": "int64"})


def products() -> Iterator[Call]:
    for dtype in DTYPES:
        pairs = [
            ((2, 3), (3, 2)),
            ((3,), (3,)),
            ((2, 3), (3,)),
            ((3,), (3, 2)),
            ((2, 2, 3), (3, 2)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 3)),
            ((2, 3), (2, 3)),
            ((), (3,)),
            ((2, 1, 2, 3), (2, 3, 2)),
        ]
        for one, two in pairs:
            for op in ("matmul", "dot", "inner", "outer", "kron", "vdot"):
                yield Call(op, (A(mild(dtype, one)), A(mild(dtype, two, 1))))
        yield Call("matmul", (A(mild(dtype, (3, 4)), "transposed"), A(mild(dtype, (4, 3)), "strided")))
        yield Call("matmul", (A(grid(dtype)), A(grid(dtype).T)))
        yield Call("matmul", (A(mild(dtype, (3, 4))), A(mild("float32", (4, 3)))))
        for axes in (0, 1, 2, ((0,), (0,)), ((1,), (1,)), ((5,), (0,)), 3, ((-1,), (-1,))):
            yield Call("tensordot", (A(mild(dtype, (2, 3))), A(mild(dtype, (2, 3), 1))), {"axes": axes})
        for text, shapes in (
            ("ij,jk->ik", ((2, 3), (3, 2))),
            ("ii", ((3, 3),)),
            ("ij->ji", ((2, 3),)),
            ("i,j", ((2,), (3,))),
            ("ij,jk", ((2, 3), (2, 3))),
            ("b i j -> b", ((2, 3, 4),)),
            ("...i,i->...", ((2, 3), (3,))),
            ("ij->", ((0, 3),)),
            ("iz->q", ((2, 3),)),
        ):
            yield Call("einsum", (text, *(A(mild(dtype, s)) for s in shapes)))
        for axis in (-1, 0, 5):
            yield Call("cross", (A(mild(dtype, (3, 3))), A(mild(dtype, (3, 3), 1))), {"axis": axis})
        yield Call("cross", (A(mild(dtype, (2, 2))), A(mild(dtype, (2, 2), 1))))
        for order in (None, "fro", "nuc", 1, 2, -1, -2, float("inf"), float("-inf"), 0, 3, 0.5, "odd"):
            for axis in (None, 0, -1, (0, 1), 5, (0, 0), (0, 1, 2)):
                yield Call("norm", (A(mild(dtype, (3, 4))), order), {"axis": axis, "keepdims": axis == (0, 1)})
        yield Call("norm", (A(edges(dtype)),))
        yield Call("norm", (A(np.zeros((0,), as_dtype(dtype))), float("inf")))


SQUARES = {
    "plain": np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.25], [0.5, -0.25, 2.0]]),
    "singular": np.array([[1.0, 2.0], [2.0, 4.0]]),
    "empty": np.zeros((0, 0)),
    "many": np.stack([np.eye(2) * 2, np.array([[2.0, 1.0], [1.0, 3.0]])]),
    "none": np.zeros((0, 2, 2)),
    "nan": np.array([[np.nan, 1.0], [1.0, 2.0]]),
    "tall": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]),
    "wide": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]]),
    "vector": np.array([1.0, 2.0]),
    "negative": np.array([[-1.0, 0.0], [0.0, 2.0]]),
}


def matrices() -> Iterator[Call]:
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "bool", "uint8", "uint32", "complex64"):
        for values in SQUARES.values():
            if dtype in ("int64", "bool", "uint8", "uint32") and np.isnan(values).any():
                continue
            with np.errstate(all="ignore"):
                x = A((np.abs(values) if dtype.startswith("u") else values).astype(as_dtype(dtype)))
            for op in ("inv", "det", "slogdet", "pinv", "cholesky", "eigvalsh", "matrix_rank"):
                yield Call(op, (x,))
            yield Call("cholesky", (x, True))
            yield Call("svd", (x,), {"compute_uv": False})
            yield Call("svd", (x,), {"full_matrices": False})
            yield Call("svd", (x,))
            yield Call("qr", (x,))
            yield Call("qr", (x, "complete"))
            yield Call("qr", (x, "odd"))
            yield Call("eigh", (x,))
            yield Call("eig", (x,))
            yield Call("eigvals", (x,))
            for n in (0, 1, 3, -1, -2):
                yield Call("matrix_power", (x, n))
            for right in ((2,), (3,), (2, 2), (3, 2), (0, 1), (2, 2, 1)):
                b = A(mild(dtype, right))
                yield Call("solve", (x, b))
                yield Call("lstsq", (x, b))
                yield Call("triangular_solve", (x, b))
                yield Call("triangular_solve", (x, b), {"lower": False, "unit_diagonal": True})
    for dtype in DTYPES:
        for shape in ((6,), (2, 5), (0,), (), (3, 1)):
            x = A(mild(dtype, shape))
            for op in ("fft", "ifft", "rfft", "irfft"):
                yield Call(op, (x,))
                for n, axis in ((4, -1), (8, 0), (0, -1), (None, 5), (3, -1), (1, -1), (-2, -1)):
                    yield Call(op, (x, n, axis))
            for op in ("fft2", "ifft2"):
                yield Call(op, (x,))
                yield Call(op, (x, (2, 3)))
                yield Call(op, (x, None, (0, 1)))


def networks() -> Iterator[Call]:
    for dtype in DTYPES:
        x, w = A(mild(dtype, (2, 4, 7))), A(mild(dtype, (6, 4, 3), 1))
        image, kernel = A(mild(dtype, (1, 2, 5, 6))), A(mild(dtype, (2, 1, 2, 3), 1))
        for strides, padding, dilation in (
            (1, 0, 1),
            (2, 1, 1),
            (1, [(2, 0)], 2),
            ([3], [(-1, 1)], [1]),
            (1, 9, 1),
            (9, 0, 1),
            (1, 0, 9),
            (0, 0, 1),
        ):
            yield Call("conv", (x, w, strides, padding, dilation))
            yield Call("conv_transpose", (x, A(mild(dtype, (4, 6, 3), 1)), strides, padding, 0, dilation))
            for fold in ("max", "min", "sum", "odd"):
                yield Call("reduce_window", (x, [2], strides, dilation, padding, fold))
        yield Call("conv", (image, kernel, [1, 2], [(0, 1), (2, 0)], 1, 2))
        yield Call("conv", (x, A(mild(dtype, (6, 3, 3)))))
        yield Call("conv", (x, w, 1, 0, 1, 3))
        yield Call("conv", (A(mild(dtype, (2, 4, 2))), w))
        yield Call("conv", (A(np.zeros((0, 4, 7), as_dtype(dtype))), w))
        yield Call("conv", (A(mild(dtype, (1, 1, 2, 2, 2, 2))), A(mild(dtype, (1, 1, 1, 2, 1, 2)))))
        yield Call("conv_transpose", (image, A(mild(dtype, (2, 2, 2, 3))), 2, 1, [1, 0], 1, 2))
        for kernel_shape, strides, padding in (
            ([2], None, 0),
            ([3], 1, 1),
            ([2], [2], [(0, 1)]),
            ([9], None, 0),
            ([0], 1, 0),
        ):
            yield Call("max_pool", (x, kernel_shape, strides, padding))
            yield Call("average_pool", (x, kernel_shape, strides, padding))
            yield Call("average_pool", (x, kernel_shape, strides, padding), {"count_include_pad": True})
        yield Call("max_pool", (A(edges(dtype)[None, None]), [3], 1, 1))
        yield Call("max_pool", (image, [2, 2]))
