"""Mutated CSL: tokens dropped, doubled, exchanged, replaced by words of the file and by numbers at the edge."""

import re

_TOKEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|@?[A-Za-z_]\w*|\d[\w.]*|\s+|[-+*/%&|^<>=!]=|<<|>>|->|.', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*$")
EDGES = (
    *("0", "1", "-1", "7", "31", "32", "65535", "65536", "4294967296", "18446744073709551616", "1.5", "1e10", "-32769"),
    *("true", "undefined", '"x"', ".{}", "void", "f32", "u16", "[0]u16", "@zeros([0]u16)", "@zeros([70000]u8)"),
    *("@get_color(3)", "@get_color(99)", "(1/0)", "i128", "comptime_int", "type", "@as(f16, 1e9)", ".{ .a = 1 }"),
    *("@get_local_task_id(9)", "|i|{3} -> arr[i]", "-@as(f32, 0.0)", "&arr", "null"),
)
_OPERATORS = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "<", ">=", "and", "or", "=")


def mutated(text, rng, builtins):
    """The text with one to three changes."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        solid = [i for i, t in enumerate(tokens) if t.strip() and not t.startswith("//")]
        if solid:
            rng.choice(_CHANGES)(tokens, solid, rng, builtins)
    return "".join(tokens)


def _some(tokens, solid, rng, wanted):
    found = [i for i in solid if wanted(tokens[i])]
    return rng.choice(found) if found else None


def _drop(tokens, solid, rng, _):
    tokens[rng.choice(solid)] = ""


def _double(tokens, solid, rng, _):
    tokens[rng.choice(solid)] *= 2


def _exchange(tokens, solid, rng, _):
    i, j = rng.choice(solid), rng.choice(solid)
    tokens[i], tokens[j] = tokens[j], tokens[i]


def _number(tokens, solid, rng, _):
    i = _some(tokens, solid, rng, lambda t: t[0].isdigit())
    if i is not None:
        tokens[i] = rng.choice(EDGES)


def _word(tokens, solid, rng, _):
    words = [tokens[i] for i in solid if _WORD.match(tokens[i])]
    i = _some(tokens, solid, rng, _WORD.match)
    if i is not None:
        tokens[i] = rng.choice((*EDGES, *words, *words))


def _builtin(tokens, solid, rng, builtins):
    i = _some(tokens, solid, rng, lambda t: t.startswith("@"))
    if i is not None:
        tokens[i] = f"@{rng.choice(builtins)}"


def _operator(tokens, solid, rng, _):
    i = _some(tokens, solid, rng, lambda t: t in _OPERATORS)
    if i is not None:
        tokens[i] = rng.choice(_OPERATORS)


def _argument(tokens, solid, rng, _):
    i = _some(tokens, solid, rng, lambda t: t == ",")
    if i is not None:
        end = next((j for j in range(i + 1, len(tokens)) if tokens[j] in ",);}"), len(tokens))
        part = tokens[i:end]
        tokens[i:end] = [] if rng.random() < 0.5 else part + part


def _statement(tokens, solid, rng, _):
    ends = [i for i in solid if tokens[i] == ";"]
    if len(ends) > 1:
        k = rng.randrange(len(ends) - 1)
        part = tokens[ends[k] + 1 : ends[k + 1] + 1]
        tokens[ends[k] + 1 : ends[k + 1] + 1] = [] if rng.random() < 0.5 else part + part


def _nest(tokens, solid, rng, _):
    i = _some(tokens, solid, rng, lambda t: t in "([{")
    if i is not None:
        tokens[i] *= rng.choice((2, 60))


_CHANGES = (
    _drop,
    _double,
    _exchange,
    _number,
    _number,
    _word,
    _word,
    _builtin,
    _operator,
    _argument,
    _statement,
    _nest,
)
