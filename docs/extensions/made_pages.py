"""Pages that the code writes: the gallery, the guides, and the list of public names.

They are written into `docs/gallery`, `docs/guides` and `docs/api` before Sphinx reads its sources.
Pictures of schedules are drawn into `docs/user_guide/pictures`.
"""

import ast
import concurrent.futures
import importlib
import inspect
import multiprocessing
import os
import textwrap
from pathlib import Path

import keras
import nbformat

import keras_tfopt
from integration import catalogue
from integration.documentation import names, pictures, runs
from integration.guides import BACKENDS, TOOLS
from keras_tfopt import addons

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
ABSTRACT = (keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.distributed.OverWorkers)
SCOPES = {"element": "any elements", "variable": "a variable", "model": "all variables"}


def write(path, *blocks):
    """Write blocks of Markdown with empty lines between them; leave a file that is so already."""
    text = "\n\n".join(block.strip("\n") for block in blocks if block) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in lines)


def toctree(entries, *options):
    return "\n".join(["```{toctree}", *(f":{option}:" for option in options), *entries, "```"])


# ---- Gallery -------------------------------------------------------------------------------------


def card(name):
    """Return the page of an optimizer: what the registry knows, and its pictures."""
    info = keras_tfopt.info(name)
    cls = info.optimizer_class
    given = [
        key if value is inspect.Parameter.empty else f"{key}={value!r}"
        for key, value in info.defaults.items()
    ]
    facts = {
        "Name": f'`keras_tfopt.get("{name}")`',
        "State": f"{info.bytes_per_parameter:.3g} bytes a parameter (float32, a large matrix)",
        "One update sees": SCOPES.get(info.scope, ""),
        "Row gradients": info.row_gradients,
        "Slots": info.slots,
        "Paper": info.paper,
        "Stands for": ", ".join(f"`{original}`" for original in info.originals),
        "Differences": info.differences,
    }
    found = runs.curve(name)
    other = keras_tfopt.info(runs.beside(name)).optimizer_class.__name__
    averages = " with the averages" if found.of_averages else ""
    dashed = f" Dashed: `{other}`, the same way." if runs.beside(name) != name else ""
    return (
        f"# {cls.__name__}",
        info.description,
        f"```python\nkeras_tfopt.{cls.__name__}({', '.join(given)})\n```",
        info.formula,
        table(["", ""], [[f"**{key}**", text] for key, text in facts.items() if text]),
        f"All arguments: {{py:obj}}`{names.path_of(cls)}`.",
        "## On digits",
        f"![Loss by epoch on scanned digits](pictures/{name}-digits.svg)",
        f"`{runs.call(name, runs.ON_DIGITS.get(name, {}), found.rate)}`. Accuracy on images not "
        f"trained on{averages}: {found.accuracy:.3f}. [How it was made](index.md).{dashed}",
        "## On two functions",
        f"![Paths on the functions of Rosenbrock and Beale](pictures/{name}-paths.svg)",
    )


def draw(name):
    """Draw the pictures of an optimizer and write its page; return its row of the table."""
    folder = DOCS / "gallery"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    pictures.draw_curve(name, folder / "pictures")
    pictures.draw_paths(name, folder / "pictures")
    write(folder / f"{name}.md", *card(name))
    info, found = keras_tfopt.info(name), runs.curve(name)
    is_rule = issubclass(info.optimizer_class, keras_tfopt.Rule)
    return is_rule, [
        f"[{info.optimizer_class.__name__}]({name}.md)",
        info.description,
        catalogue.rows_of(info.optimizer_class) if is_rule else "",
        f"{info.bytes_per_parameter:.3g}",
        f"{found.losses[-1]:.4f}",
        f"{found.accuracy:.3f}" + ("*" if found.of_averages else ""),
    ]


def gallery(cards, drawn):
    """Write the page of all optimizers; `drawn` has the rows of their table."""
    folder = DOCS / "gallery"
    rows = {kind: [row for is_rule, row in drawn if is_rule == kind] for kind in (True, False)}
    header = ["optimizer", "what it does", "row gradients", "bytes a parameter", "loss", "accuracy"]
    x, _, x_other, y_other = runs.digits()
    write(
        folder / "index.md",
        "# Gallery",
        f"Every optimizer trains the same network (one hidden layer of {runs.HIDDEN} tanh units) "
        f"on the {len(x) + len(x_other):,} scanned digits of scikit-learn, 8 by 8 pixels: "
        f"{len(x):,} images in batches of {runs.BATCH} for {runs.EPOCHS} epochs. The learning rate "
        f"is the one of {', '.join(f'{rate:.2g}' for rate in runs.RATES)} with the lowest loss on "
        f"the other {len(x_other)} images. Other arguments are defaults, unless the page of the "
        f"optimizer shows them. Wrappers are around `{runs.INSIDE}`.",
        "This shows how each behaves. It ranks nothing: the task is small, there is one seed, and "
        f"accuracies have a standard error of about {(0.97 * 0.03 / len(y_other)) ** 0.5:.3f}. "
        f"Paths on functions of two numbers take {runs.STEPS} steps without noise.",
        "## Optimizers",
        table(header, rows[True]),
        "## Wrappers",
        table(header, rows[False]),
        "\\* of the averages.",
        toctree(cards, "hidden"),
    )


# ---- Guides --------------------------------------------------------------------------------------


def cells(path):
    """Return the cells of a guide: its strings are Markdown, the rest is code."""
    text = path.read_text("utf-8")
    lines, found, start = text.splitlines(), [], 0
    for node in ast.parse(text).body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
            found.append(("code", "\n".join(lines[start : node.lineno - 1]).strip("\n")))
            found.append(("markdown", value.value.strip("\n")))
            start = node.end_lineno
    found.append(("code", "\n".join(lines[start:]).strip("\n")))
    return [(kind, body) for kind, body in found if body]


def guide(path):
    """Write a guide as a page, and as a notebook; return the entry of the list."""
    (_, head), *others = cells(path)
    facts = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    blocks = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in others]
    files = {"Notebook": f"{path.stem}.ipynb", "Script": f"../../guides/{path.name}"}
    links = " ".join(f"{{download}}`{name} <{file}>`" for name, file in files.items())
    write(
        DOCS / "guides" / f"{path.stem}.md",
        f"# {facts['Title']}",
        facts["Description"],
        links,
        *blocks,
    )
    install = "%pip install keras_tfopt matplotlib scikit-learn mlxtend"
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook = nbformat.v4.new_notebook()
    title = f"# {facts['Title']}\n\n{facts['Description']}"
    notebook.cells = [make["markdown"](title), make["code"](install)]
    for tool in sorted(TOOLS):  # modules that the guides import
        code = (ROOT / "guides" / f"{tool}.py").read_text("utf-8")
        notebook.cells.append(make["code"](f"%%writefile {tool}.py\n{code}"))
    notebook.cells += [make[kind](text) for kind, text in others]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = str(number)
    nbformat.write(notebook, DOCS / "guides" / f"{path.stem}.ipynb")
    return facts


def guides():
    (DOCS / "guides").mkdir(exist_ok=True)
    facts = {name: guide(ROOT / "guides" / f"{name}.py") for name in BACKENDS}
    write(
        DOCS / "guides" / "index.md",
        "# Guides",
        "Each guide is a script that runs on real data, which comes with a package.",
        table(
            ["guide", "what it shows"],
            [
                [f"[{fact['Title']}]({name}.md)", fact["Description"]]
                for name, fact in facts.items()
            ],
        ),
        toctree(list(facts), "hidden"),
    )


# ---- Public names --------------------------------------------------------------------------------


def api():
    """Write a page for every module, and one for every class and function."""
    sections = []
    for module in names.MODULES:
        found = [entry for entry in names.public() if entry.module == module]
        if not found:
            continue
        folder = DOCS / "api" / module
        for entry in found:
            kind = "class" if inspect.isclass(entry.item) else "function"
            options = ":members:\n" if kind == "class" else ""
            if entry.item in (*ABSTRACT, keras_tfopt.legacy.Optimizer):
                options += ":inherited-members: Optimizer, BaseOptimizer\n"
            elif entry.item in addons.CLASSES.values():  # what they have beside those of ours
                ours = inspect.getmro(entry.item.__bases__[-1])
                options += f":inherited-members: {', '.join(c.__name__ for c in ours)}\n"
            write(
                folder / f"{file_of(entry)}.md",
                f"# {entry.name}",
                f"```{{eval-rst}}\n.. auto{kind}:: {entry.path}\n"
                f"{textwrap.indent(options, '   ')}```",
            )
        first = [(inspect.getdoc(entry.item) or "").split("\n", 1)[0] for entry in found]
        rows = [
            [f"[{entry.name}]({module}/{file_of(entry)}.md)", line]
            for entry, line in zip(found, first, strict=True)
        ]
        write(
            DOCS / "api" / f"{module}.md",
            f"# {module}",
            (importlib.import_module(module).__doc__ or "").split("\n", 1)[0],
            table(["name", "what it is"], rows),
            toctree([f"{module}/{file_of(entry)}" for entry in found], "hidden"),
        )
        sections.append(module)
    write(DOCS / "api" / "index.md", "# API", toctree(sections))


def file_of(entry):
    """Return the file of a name; `Info` and `info` are one name to some file systems."""
    alike = [e.path for e in names.public() if e.path.lower() == entry.path.lower()]
    return f"{entry.name}{'-' * alike.index(entry.path)}"


def make(app):
    if keras.backend.backend() != "jax":
        raise RuntimeError("The pictures are made on JAX. Set KERAS_BACKEND=jax.")
    cards = keras_tfopt.list_optimizers(exclude="keras.*")
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), spawned) as pool:
        drawn = pool.map(draw, cards)
        api()
        guides()
        pictures.draw_page(DOCS / "user_guide" / "schedules.md")
        gallery(cards, list(drawn))


def setup(app):
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}
