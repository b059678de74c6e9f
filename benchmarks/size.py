"""Counts lines, files, flags, single-use files, dataclasses and import circles of the product.

    .venv/bin/python benchmarks/size.py

A file that only one other file imports, also within a function, could be a section of that file.
Neither the imports of `__init__` files nor the files at the top level count as uses, except in the
number in brackets. Markdown counts files under version control, without generated pages. `--list`
prints the single-use files with their lines.
"""

import argparse
import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from keras_bert.programs.command import PROGRAMS
from keras_bert.programs.options import declared

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("keras_bert", "data_tools")


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the single-use files")
    arguments = parser.parse_args()
    trees = {p: ast.parse(p.read_text()) for f in PRODUCT for p in (ROOT / f).rglob("*.py")}
    for folder in (*PRODUCT, "tests", "benchmarks"):
        files = sorted((ROOT / folder).rglob("*.py"))
        print(f"{folder}: {sum(map(num_lines, files)):,} lines in {len(files)} files")
    print(f"product: {sum(map(num_lines, trees)):,} lines in {len(trees)} files")
    markdown = tracked_files("*.md")
    print(f"Markdown: {sum(map(num_lines, markdown)):,} lines in {len(markdown)} files")
    print(f"dataclasses: {count_classes(trees.values(), is_dataclass)}")
    print(f"Protocols: {count_classes(trees.values(), is_protocol)}")
    print(f"flags over all programs, with aliases: {num_flags()}")
    users = defaultdict(set)
    for path in [*trees, *ROOT.glob("*.py")]:
        for file in imported_files(ast.walk(ast.parse(path.read_text()))) - {path}:
            users[file].add(path)
    uses = {path: {user for user in users[path] if is_use(user)} for path in trees}
    single = sorted(path for path in trees if len(uses[path]) == 1)
    of_all = sum(len(users[path]) == 1 for path in trees)
    print(f"files that one other file imports: {len(single)} ({of_all})")
    if arguments.list:
        for path in single:
            user = next(iter(uses[path])).relative_to(ROOT)
            print(f"  {num_lines(path):4} {path.relative_to(ROOT)} <- {user}")
    imports = {path: imported_files(module_statements(tree)) for path, tree in trees.items()}
    for circle in circles(imports):
        print("import circle:", " ".join(str(path.relative_to(ROOT)) for path in circle))


def tracked_files(pattern: str) -> list[Path]:
    """Returns the files under version control whose paths match a pattern."""
    command = ["git", "ls-files", "-z", "--", pattern]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).exists()]


def num_lines(path: Path) -> int:
    """Returns the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def num_flags() -> int:
    """Returns the number of different flags of all programs, without those of absl."""
    names = set()
    for module, _ in PROGRAMS.values():
        options = declared(import_module(module).PROGRAM.flags())
        names |= {*options, *(option.alias for option in options.values())}
    return len(names - {""})


def count_classes(trees, is_kind) -> int:
    """Returns the number of classes of a kind."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return sum(map(is_kind, classes))


def is_dataclass(node: ast.ClassDef) -> bool:
    """Returns whether a class is a dataclass."""
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_protocol(node: ast.ClassDef) -> bool:
    """Returns whether a class is a Protocol."""
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def is_use(path: Path) -> bool:
    """Returns whether a file is one of the product that does more than offer names of others."""
    return path.name != "__init__.py" and path.parent != ROOT


def imported_files(nodes: Iterable[ast.AST]) -> set[Path]:
    """Returns the files of the product that statements import."""
    files = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            file = ROOT.joinpath(*module.split("."))
            if file.with_suffix(".py").exists():
                files.add(file.with_suffix(".py"))
    return {file for file in files if file.relative_to(ROOT).parts[0] in PRODUCT}


def module_statements(tree: ast.AST):
    """Yields the statements that run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from module_statements(node)


def circles(imports: dict[Path, set[Path]]) -> list[list[Path]]:
    """Returns the strongly connected components with several files (Tarjan, 1972)."""
    index, low, stack, components = {}, {}, [], []

    def visit(node: Path) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in imports[node]:
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            components.extend([component] if len(component) > 1 else [])

    for node in imports:
        if node not in index:
            visit(node)
    return components


if __name__ == "__main__":
    main()
