"""What a Python file imports."""

import ast


def imports(path, *, with_types=False):
    """Yield every import of a file as ``module`` or ``module.name``, with those of types or not."""
    waiting = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        is_of_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_of_types and not with_types:
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield str(getattr(node.args[0], "value", ""))
        waiting += ast.iter_child_nodes(node)
