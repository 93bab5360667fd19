"""Random programs with helpers: the statements of each place become a function, a closure or a method."""

import ast
import re
import textwrap

# What a helper is: how it is defined around its text, and how it is called.
STYLES = {
    "function": ("{helper}", "{name}"),
    "closure": ("def make_{name}():\n    gain = 1\n{indented}\n    return {name}\nmade_{name} = make_{name}()",
                "made_{name}"),
    "method of a module": ("class Of_{name}(nn.Module):\n{indented}\nof_{name} = Of_{name}()", "of_{name}.{name}"),
    "method of an object": ("class Of_{name}:\n{indented}\nof_{name} = Of_{name}()", "of_{name}.{name}"),
}  # fmt: skip
# What a helper is given by itself, so that it has tensors and numbers for arguments, and not the whole example.
_GIVEN = {"e.x": "own", "e.k": "number", "node.x": "of_node", "parts[0]": "first", "parts[-1]": "last"}
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)


def _names(tree, context):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _targets(tree):
    """Names that a piece of a program assigns, also as parameters and names of functions."""
    found = _names(tree, (ast.Store, ast.Del))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found |= {node.name, *[argument.arg for argument in node.args.args]}
    return found


def helper_for(name, statements, program, style):
    """(definition, call) for the statements of one place; None where they must stay in their function."""
    text = "\n".join(statements)
    lines, passed = _lines_of(text, program), {}
    for expression, argument in _GIVEN.items():
        pattern = rf"(?<![\w.]){re.escape(expression)}(?!\w)"
        if re.search(pattern, text) and not re.search(rf"{pattern}\s*[-+*/@]?=(?!=)", text):
            text = re.sub(pattern, argument, text)
            passed[argument] = expression
    block, whole = ast.parse(text), ast.parse(program)
    stays = (*_LEAVES, ast.FunctionDef, ast.Lambda)
    if any(isinstance(node, stays) for node in ast.walk(block)) or "h" not in _targets(block):
        return None
    made = _targets(block) - {"h"}
    outside = {node.id for node in ast.walk(whole) if isinstance(node, ast.Name) and node.lineno not in lines}
    if made & outside:
        return None  # what it makes is used elsewhere
    local = _targets(whole)
    given = sorted(_names(block, ast.Load) & local - made | ({"h"} & _first_read(block)))
    given = [name for name in given if name not in passed]
    own = [*["self"] * style.startswith("method"), *given, *passed]
    helper = f"def {name}({', '.join(own)}):\n{textwrap.indent(text, '    ')}\n    return h"
    define, call = STYLES[style]
    definition = define.format(name=name, helper=helper, indented=textwrap.indent(helper, "    "))
    return definition, f"h = {call.format(name=name)}({', '.join([*given, *passed.values()])})"


def _first_read(block):
    """{"h"} if the block may read `h` before it assigns it."""
    for statement in block.body:
        reads = _names(statement, ast.Load) | {
            node.target.id for node in ast.walk(statement)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }  # fmt: skip
        if "h" in reads:
            return {"h"}
        if "h" in _names(statement, ast.Store):
            return set()
    return set()


def _lines_of(text, program):
    """The numbers of the lines of a program that hold these statements."""
    lines, wanted = [line.strip() for line in program.split("\n")], [line.strip() for line in text.split("\n")]
    for start in range(len(lines)):
        if lines[start : start + len(wanted)] == wanted:
            return range(start + 1, start + 1 + len(wanted))
    return range(0)
