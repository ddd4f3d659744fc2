"""Which lines of a source run only where there are GPUs, or say so themselves."""

import ast

NAMES = {"cuda", "is_cuda", "bf16_supported"}  # a name that is true on GPUs only
COUNTS = {"gpus", "count_gpus", "device_count"}  # how many GPUs there are
OPPOSITE = {"cuda": "cpu", "cpu": "cuda"}
LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def find(source):
    """The statements of a source that concern GPUs.

    Those that are guarded by ``device.type == "cuda"`` and the like, whichever way round, and those
    that name torch.cuda, a device "cuda" or nccl, guarded or not.

    Returns
    -------
    dict of int to range
        First line of a statement: all its lines. Of an `if`, a loop or a `with` its head.
    """
    found = {}
    _walk(ast.parse(source).body, None, found)
    return found


def _walk(body, on, found):
    """`on`: the device on which these statements run; None: whichever."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            pass  # these run wherever the file does
        elif on == "cuda" or (on is None and _speaks_of_gpus(node)):
            found[node.lineno] = _lines(node)
        if isinstance(node, ast.If):
            yes, no = _sides(node.test)
            _walk(node.body, on or yes, found)
            _walk(node.orelse, on or no, found)
            if isinstance(node.body[-1], LEAVE):
                on = on or no  # the others have left
            continue
        for field in ("body", "orelse", "finalbody"):
            _walk(getattr(node, field, []), on, found)
        for handler in getattr(node, "handlers", []):
            _walk(handler.body, on, found)


def _heads(node):
    """What a statement evaluates by itself: not the statements within it."""
    for _, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, (ast.stmt, ast.ExceptHandler)):
                yield part


def _lines(node):
    heads = [getattr(part, "end_lineno", node.lineno) for part in _heads(node)]
    simple = not hasattr(node, "body")
    return range(node.lineno, (node.end_lineno if simple else max(heads, default=node.lineno)) + 1)


def _speaks_of_gpus(node):
    for part in (n for head in _heads(node) for n in ast.walk(head)):
        if isinstance(part, ast.Attribute) and part.attr in ("cuda", "nccl"):
            return not isinstance(node, ast.If)  # it is asked everywhere; what it guards counts
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            text = part.value
            if text in ("cuda", "nccl") or (text.startswith("cuda:") and len(text) < 8):
                return not isinstance(node, ast.If)
    return False


def _sides(test):
    """On which device the condition must hold for it to be true, and for it to be false."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _sides(test.operand)[::-1]
    if isinstance(test, ast.BoolOp):
        on, off = zip(*map(_sides, test.values))
        if isinstance(test.op, ast.And):  # true: all of them are; false: any of them is
            return _some(on), _all(off)
        return _all(on), _some(off)
    side = _asks(test)
    return side, OPPOSITE.get(side)


def _some(sides):
    return next((s for s in sides if s), None)


def _all(sides):
    return sides[0] if len(set(sides)) == 1 else None


def _asks(test):
    """The device on which a plain condition is true."""
    if isinstance(test, ast.Call):
        return "cuda" if ast.unparse(test.func).endswith("cuda.is_available") else None
    if isinstance(test, (ast.Name, ast.Attribute)):
        return "cuda" if _last_name(test) in NAMES else None
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    left, op, right = test.left, test.ops[0], test.comparators[0]
    for side in (left, right):
        if isinstance(side, ast.Constant) and side.value in OPPOSITE:
            return {ast.Eq: side.value, ast.NotEq: OPPOSITE[side.value]}.get(type(op))
    more = isinstance(op, (ast.Gt, ast.GtE)) - isinstance(op, (ast.Lt, ast.LtE))
    more *= _counts(left) - _counts(right)
    return {1: "cuda", -1: "cpu"}.get(more)


def _counts(node):
    return _last_name(node.func if isinstance(node, ast.Call) else node).lower() in COUNTS


def _last_name(node):
    return getattr(node, "attr", getattr(node, "id", ""))
